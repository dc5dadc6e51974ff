//! One cell: so many requests, so many at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::prompts::{Prompts, Scenario, TokenRange};
use super::request::{Sample, Target};
use crate::config::Word as _;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) scenario: Scenario,
    pub(super) concurrency: u32,
    pub(super) requests: u32,
    pub(super) warmup: u32,
    pub(super) range: TokenRange,
    pub(super) seed: u64,
    pub(super) timeout: Duration,
}

/// What was seen.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) samples: Vec<Sample>,
    pub(super) errors: Vec<String>,
    /// From the first request's start to the last one's end.
    pub(super) wall: Duration,
}

/// Warms up, then keeps `concurrency` requests under way until all have been sent and answered.
pub(super) async fn run(target: &Target, cell: &Cell) -> Seen {
    let Scenario { shared, own, output } = cell.scenario;
    let mut prompts = Prompts::new(cell.seed, cell.range);
    let prefix = prompts.draw(&[], shared);
    // Drawn before the clock starts. The warm-up has prompts of its own, so the first measured one finds no prefix.
    let warm: Vec<_> = (0..cell.warmup).map(|_| prompts.draw(&[], shared + own)).collect();
    let all: Vec<_> = (0..cell.requests).map(|_| prompts.draw(&prefix, own)).collect();
    for prompt in &warm {
        // What is wrong with the server shows in the measured requests too.
        _ = attempt(target, prompt, output.min(8), cell.timeout).await;
    }

    let bar = progress_bar(cell);
    let (next, results) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Vec::new())));
    let began = Instant::now();
    let client = async || {
        while let Some(prompt) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = attempt(target, prompt, output, cell.timeout).await;
            let mut results = results.lock().expect("no client panics");
            match result {
                Ok(sample) => results.0.push(sample),
                Err(error) => results.1.push(error),
            }
            bar.inc(1);
        }
    };
    futures::future::join_all((0..cell.concurrency.min(cell.requests)).map(|_| client())).await;
    let wall = began.elapsed();
    bar.finish_and_clear();
    let (samples, errors) = results.into_inner().expect("no client panics");
    Seen { samples, errors, wall }
}

async fn attempt(target: &Target, prompt: &[u32], output: u32, timeout: Duration) -> Result<Sample, String> {
    let timed_out = || format!("no whole answer within {} s", timeout.as_secs_f64());
    tokio::time::timeout(timeout, target.complete(prompt, output)).await.map_err(|_| timed_out())?
}

/// Hidden where standard error is no terminal.
fn progress_bar(cell: &Cell) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").expect("a valid template");
    ProgressBar::new(cell.requests.into()).with_style(style).with_message(format!(
        "{} c={}",
        cell.scenario.show(),
        cell.concurrency
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use axum::Json;
    use axum::routing::post;
    use serde_json::{Value, json};

    use super::super::report::Report;
    use super::super::{Options, measure};
    use super::*;
    use crate::config::{Count, Row, Seed, Url};

    #[derive(Default)]
    struct Observed {
        bodies: Mutex<Vec<Value>>,
        under_way: AtomicU32,
        most_under_way: AtomicU32,
    }

    /// A server whose answers have the tokens that were asked for, two an event; prompts that begin with an odd token fail if `fails`.
    async fn server(fails: bool) -> (String, Arc<Observed>) {
        let observed = Arc::new(Observed::default());
        let seen = Arc::clone(&observed);
        let answer = move |Json(body): Json<Value>| {
            let seen = Arc::clone(&seen);
            async move {
                let now = seen.under_way.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most_under_way.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                let prompt = body["prompt"].as_array().expect("ids").len();
                let output = body["max_tokens"].as_u64().expect("a number");
                let is_odd = body["prompt"][0].as_u64().expect("an id") % 2 == 1;
                seen.bodies.lock().expect("whole").push(body);
                let mut text = String::new();
                for _ in 0..output.div_ceil(2) {
                    text.push_str("data: {\"choices\":[{\"text\":\"x\"}]}\n\n");
                }
                if fails && is_odd {
                    text = format!("data: {}\n\n", json!({ "error": { "message": "odd" } }));
                }
                text.push_str(&format!(
                    "data: {}\n\ndata: [DONE]\n\n",
                    json!({ "choices": [], "usage": { "prompt_tokens": prompt, "completion_tokens": output } })
                ));
                seen.under_way.fetch_sub(1, Ordering::SeqCst);
                text
            }
        };
        let app = axum::Router::new().route("/v1/completions", post(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (url, observed)
    }

    fn options(url: &str, scenario: &str) -> Options {
        Options {
            url: Url(url.into()),
            model: Some("small".into()),
            api_key: None,
            scenario: Row(vec![Scenario::parse(scenario).expect("a scenario")]),
            concurrency: Row(vec![Count(3)]),
            requests: Some(Count(10)),
            warmup: Count(1),
            repeat: Count(2),
            seed: Seed(7),
            token_range: TokenRange::parse("100..999").expect("a range"),
            fresh: false,
            timeout: Duration::from_secs(60),
            label: None,
            json: None,
            plot: None,
        }
    }

    #[tokio::test]
    async fn every_request_is_sent_once_and_the_warm_up_is_not_counted() {
        let (url, observed) = server(false).await;
        let reports: Vec<Report> = measure(&options(&url, "5+3/8")).await.expect("a server");
        assert_eq!(reports.len(), 2);
        for report in &reports {
            assert_eq!((report.answered, report.errors, report.output_tokens), (10, 0, 80));
            assert_eq!(report.itl.count, 30, "four events each");
        }
        assert!(observed.most_under_way.load(Ordering::SeqCst) <= 3);
        let bodies = observed.bodies.lock().expect("whole");
        assert_eq!(bodies.len(), 2 * (1 + 10));
        let prompts: std::collections::BTreeSet<String> =
            bodies.iter().map(|body| body["prompt"].to_string()).collect();
        assert_eq!(prompts.len(), bodies.len(), "no prompt is sent twice");
        let prefix = |body: &Value| body["prompt"].as_array().expect("ids")[..5].to_vec();
        assert!(bodies[1..11].iter().all(|body| prefix(body) == prefix(&bodies[1])), "a cell shares its prefix");
        assert_ne!(prefix(&bodies[0]), prefix(&bodies[1]), "the warm-up does not");
        assert_ne!(prefix(&bodies[1]), prefix(&bodies[12]), "the next cell has another");
        assert!(bodies.iter().all(|body| body["ignore_eos"] == true && body["stream"] == true));
    }

    #[tokio::test]
    async fn failed_requests_are_counted_and_told() {
        let (url, observed) = server(true).await;
        let reports = measure(&options(&url, "4/2")).await.expect("a server");
        let bodies = observed.bodies.lock().expect("whole");
        let odd = bodies[1..11].iter().filter(|body| body["prompt"][0].as_u64().expect("an id") % 2 == 1).count();
        assert!((1..10).contains(&odd), "the seed gives both kinds");
        assert_eq!((reports[0].errors, reports[0].answered), (odd, 10 - odd));
        assert!(reports[0].first_error.as_ref().expect("an error").contains("odd"));
    }
}
