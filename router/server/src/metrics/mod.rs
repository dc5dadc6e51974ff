//! What the server counts and measures, and how it is shown at `/metrics`.
//!
//! Names and bucket edges are the peer's (`vllm:*`) where we know the value, so that dashboards and autoscalers keep working;
//! what others lack is `pelton_*`. Readers take one series per name, so there is exactly one (`engine="0"`), present from the start.
//! Never here: waiting. A scrape reads atomics and the engine's latest counters.

mod clock;
mod series;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use pelton_engine::{BadFrames, Phase, Stats, Status, Wait};

pub(crate) use clock::{RequestClock, Siblings};
use series::{Counter, Exposition, Histogram, labelled, one_two_five};

/// The peer's edges, seconds.
const TO_FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const ANSWERS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const HTTP_DURATION: &[f64] = &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

/// How answers end, in the order of `Metrics::ended`.
const ENDS: [&str; 6] = ["stop", "length", "tool_calls", "abort", "error", "repetition"];
/// Where an answer was when its client left, in the order of `Metrics::cancelled`.
const PHASES: [&str; 3] = ["queued", "prefill", "decode"];

/// All series that the server itself feeds. The engine's counters are read when they are shown.
#[derive(Debug)]
pub struct Metrics {
    model: String,
    to_first_token: Histogram,
    between_tokens: Histogram,
    per_output_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    max_generation_tokens: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
    ended: [Counter; ENDS.len()],
    cancelled: [Counter; PHASES.len()],
    stalled_streams: Counter,
    /// Requests whose time was over before the engine had them.
    expired_in_text: Counter,
    /// What the latest loading read, or reads.
    load_total_bytes: AtomicU64,
    /// By route, method and class of status. Routes are those of the router, so this is bounded.
    http: Mutex<BTreeMap<HttpLabels, Arc<HttpSeries>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct HttpLabels {
    route: String,
    method: String,
    status: &'static str,
}

#[derive(Debug)]
struct HttpSeries {
    requests: Counter,
    duration: Histogram,
}

impl Metrics {
    /// `context`: the most tokens a request can have; bounds the edges of token counts.
    pub(crate) fn new(model: &str, context: u32) -> Self {
        let tokens = one_two_five(context);
        Self {
            model: model.to_owned(),
            to_first_token: Histogram::new(TO_FIRST_TOKEN),
            between_tokens: Histogram::new(BETWEEN_TOKENS),
            per_output_token: Histogram::new(BETWEEN_TOKENS),
            end_to_end: Histogram::new(LATENCY),
            queue: Histogram::new(LATENCY),
            prefill: Histogram::new(LATENCY),
            decode: Histogram::new(LATENCY),
            inference: Histogram::new(LATENCY),
            prompt_tokens: Histogram::new(&tokens),
            generation_tokens: Histogram::new(&tokens),
            max_generation_tokens: Histogram::new(&tokens),
            params_n: Histogram::new(ANSWERS),
            params_max_tokens: Histogram::new(&tokens),
            ended: Default::default(),
            cancelled: Default::default(),
            stalled_streams: Counter::default(),
            expired_in_text: Counter::default(),
            load_total_bytes: AtomicU64::new(0),
            http: Mutex::default(),
        }
    }

    /// An HTTP response has begun. `route` is a route of ours, never a path that a client made up.
    pub(crate) fn http_answered(&self, route: &str, method: &str, status: u16, took: Duration) {
        let status = match status {
            ..200 => "1xx",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            500.. => "5xx",
        };
        let series = {
            let mut all = self.http.lock().unwrap_or_else(PoisonError::into_inner);
            let labels = HttpLabels { route: route.to_owned(), method: method.to_owned(), status };
            let new = || HttpSeries { requests: Counter::default(), duration: Histogram::new(HTTP_DURATION) };
            let series = all.entry(labels).or_insert_with(|| Arc::new(new()));
            Arc::clone(series)
        };
        series.requests.add(1);
        series.duration.observe(took.as_secs_f64());
    }

    /// A client left its stream unread for too long.
    pub(crate) fn stream_stalled(&self) {
        self.stalled_streams.add(1);
    }

    /// A request's time was over while its text was still worked on.
    pub(crate) fn expired_in_text(&self) {
        self.expired_in_text.add(1);
    }

    /// The model is being loaded, in so many bytes. 0, where a stage has none to count, changes nothing.
    pub(crate) fn loading(&self, total_bytes: u64) {
        if total_bytes > 0 {
            self.load_total_bytes.store(total_bytes, Relaxed);
        }
    }

    /// The classic text format, whatever the reader says it accepts: autoscalers read nothing else.
    pub(crate) fn show(&self, stats: &Stats, status: &Status, now_s: u64) -> String {
        let mut shown = Exposition::new(labelled(&[("model_name", &self.model), ("engine", "0")]));
        self.show_gauges(&mut shown, stats, status, now_s);
        Self::show_engine(&mut shown, stats);
        self.show_requests(&mut shown);
        self.show_own(&mut shown, stats, status);
        let mut text = shown.into_text();
        text.push_str(&self.http_text());
        text
    }

    /// The five that load balancers live on come first.
    fn show_gauges(&self, shown: &mut Exposition, stats: &Stats, status: &Status, now_s: u64) {
        let used = if stats.blocks == 0 { 0.0 } else { stats.blocks_held as f64 / stats.blocks as f64 };
        shown.gauge("vllm:num_requests_running", "Requests in a batch.", stats.running);
        shown.gauge("vllm:num_requests_waiting", "Requests not yet admitted to a batch.", stats.queue.requests);
        shown.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks that requests hold, 0 to 1.", used);
        let model = status.model.as_ref();
        let block_size = model.map_or(0, |model| model.block_size).to_string();
        let blocks = model.map_or(0, |model| u64::from(model.blocks) * stats.workers).to_string();
        let dtype = model.map_or("", |model| model.dtype.as_str());
        let labels = [("block_size", block_size.as_str()), ("num_gpu_blocks", &blocks), ("cache_dtype", dtype)];
        shown.info("vllm:cache_config_info", "The KV cache.", &labels, 1);
        let labels = [("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")];
        shown.info("vllm:lora_requests_info", "Adapters in use, at this time.", &labels, now_s);
    }

    fn show_engine(shown: &mut Exposition, stats: &Stats) {
        shown.counter(
            "vllm:prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache.",
            stats.prompt_tokens,
        );
        shown.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.cached_tokens);
        let device_hits = stats.cached_tokens.saturating_sub(stats.host_hit_tokens + stats.disk_hit_tokens);
        let series = [("device", device_hits), ("host", stats.host_hit_tokens), ("disk", stats.disk_hit_tokens)]
            .map(|(tier, hits)| ([("tier", tier)], hits));
        shown.counters(
            "pelton_prefix_cache_hits_by_tier_total",
            "Prompt tokens found in the prefix cache, by where they were.",
            series.iter().map(|(labels, value)| (labels.as_slice(), *value)),
        );
        shown.counter("vllm:num_preemptions_total", "Requests preempted.", stats.preemptions);
        shown.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", stats.prompt_tokens);
        shown.counter("vllm:prompt_tokens_cached_total", "Of those, found in the prefix cache.", stats.cached_tokens);
        shown.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generated_tokens);
        let (drafted, accepted) = (stats.drafted_tokens, stats.accepted_tokens);
        shown.counter("vllm:spec_decode_num_draft_tokens_total", "Drafts of tokens computed.", drafted);
        shown.counter("vllm:spec_decode_num_accepted_tokens_total", "Of those, drawn by the model.", accepted);
        let series = [
            ([("reason", "requests")], stats.queue.refused_by_requests),
            ([("reason", "tokens")], stats.queue.refused_by_tokens),
            ([("reason", "wait")], stats.queue.refused_by_wait),
            ([("reason", "share")], stats.queue.displaced),
        ];
        let series = series.iter().map(|(labels, value)| (labels.as_slice(), *value));
        shown.counters(
            "vllm:admission_rejections_total",
            "Requests that the queue refused, by the bound that was hit.",
            series,
        );
    }

    fn show_requests(&self, shown: &mut Exposition) {
        let labels = ENDS.map(|reason| [("finished_reason", reason)]);
        let series = labels.iter().zip(&self.ended).map(|(labels, counter)| (labels.as_slice(), counter.value()));
        shown.counters("vllm:request_success_total", "Answers ended, by reason.", series);
        for (name, help, histogram) in [
            ("vllm:time_to_first_token_seconds", "From arrival to the first token.", &self.to_first_token),
            ("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", &self.between_tokens),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time between an answer's tokens.",
                &self.per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "From arrival to the end of the answer.", &self.end_to_end),
            ("vllm:request_queue_time_seconds", "From arrival to a place in a batch.", &self.queue),
            ("vllm:request_prefill_time_seconds", "From a place in a batch to the first token.", &self.prefill),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", &self.decode),
            ("vllm:request_inference_time_seconds", "From a place in a batch to the last token.", &self.inference),
            ("vllm:request_prompt_tokens", "Tokens of a prompt.", &self.prompt_tokens),
            ("vllm:request_generation_tokens", "Tokens of an answer.", &self.generation_tokens),
            (
                "vllm:request_max_num_generation_tokens",
                "Tokens of the longest answer to a prompt.",
                &self.max_generation_tokens,
            ),
            ("vllm:request_params_n", "`n` of a request.", &self.params_n),
            ("vllm:request_params_max_tokens", "`max_tokens` of a request.", &self.params_max_tokens),
        ] {
            shown.histogram(name, help, histogram);
        }
    }

    fn show_own(&self, shown: &mut Exposition, stats: &Stats, status: &Status) {
        let (done, total) = match status.phase {
            Phase::Loading { done, total, .. } => (done, total),
            // Loaded: all of it.
            _ => [self.load_total_bytes.load(Relaxed); 2].into(),
        };
        let is_ready = matches!(status.phase, Phase::Ready | Phase::Recovering { .. });
        shown.gauge("pelton_ready", "1 while requests are taken.", u8::from(is_ready));
        shown.gauge("pelton_load_done_bytes", "Bytes loaded; all of them once the model is ready.", done);
        shown.gauge("pelton_load_total_bytes", "Bytes that loading reads.", total);
        shown.gauge("pelton_blocks", "KV blocks.", stats.blocks);
        shown.gauge("pelton_blocks_held", "KV blocks that requests hold.", stats.blocks_held);
        shown.gauge("pelton_host_blocks", "Blocks of host memory for KV.", stats.host_blocks);
        shown.gauge(
            "pelton_host_blocks_held",
            "Blocks of host memory that a step or the disk reads or writes.",
            stats.host_blocks_held,
        );
        shown.gauge(
            "pelton_host_blocks_findable",
            "Blocks of host memory that can be found.",
            stats.host_blocks_findable,
        );
        shown.gauge("pelton_disk_places", "Places for KV blocks on disk.", stats.disk_places);
        shown.gauge("pelton_disk_blocks", "KV blocks on disk that can be found.", stats.disk_blocks);
        shown.counter("pelton_kv_saves_total", "KV blocks copied to host memory.", stats.saves);
        shown.counter("pelton_kv_loads_total", "KV blocks copied back from host memory.", stats.loads);
        shown.counter("pelton_disk_writes_total", "KV blocks written to disk.", stats.disk_writes);
        shown.counter("pelton_disk_reads_total", "KV blocks read from disk.", stats.disk_reads);
        shown.counter(
            "pelton_disk_faults_total",
            "KV blocks that the disk has not taken, or not given back as they were written.",
            stats.disk_faults,
        );
        shown.counter("pelton_generated_tokens_total", "Tokens generated.", stats.generated_tokens);
        shown.counter("pelton_spec_draft_tokens_total", "Drafts of tokens computed.", stats.drafted_tokens);
        let accepted = "Of those, drawn by the model: each saved its request a step.";
        shown.counter("pelton_spec_accepted_tokens_total", accepted, stats.accepted_tokens);
        let forced = "Tokens that a grammar left no choice about, so that nobody drew them.";
        shown.counter("pelton_forced_tokens_total", forced, stats.forced_tokens);
        shown.counter("pelton_vectors_total", "Vectors made of texts.", stats.vectors);
        let late = "Tokens drawn a step later, because their grammar's mask did not come in time.";
        shown.counter("pelton_late_masks_total", late, stats.unsampled);
        shown.counter("pelton_steps_total", "Steps committed.", stats.steps);
        for (name, help, micros) in [
            ("pelton_worker_computing_seconds_total", "In which workers computed steps.", stats.computing_us),
            ("pelton_worker_occupied_seconds_total", "In which workers had requests.", stats.occupied_us),
        ] {
            shown.counter(name, help, micros as f64 / 1e6);
        }
        shown.gauge(
            "pelton_waiting_tokens",
            "Prompt tokens of requests not yet admitted to a batch.",
            stats.queue.tokens,
        );
        let wait_s = stats.queue.wait.as_secs_f64();
        shown.gauge("pelton_queue_wait_foreseen_seconds", "How long a request that came now would wait.", wait_s);
        shown.gauge("pelton_workers", "Workers that are configured.", stats.workers);
        shown.gauge("pelton_workers_ready", "Workers that compute now.", stats.workers_ready);
        shown.counter(
            "pelton_requests_expired_total",
            "Requests whose deadline passed.",
            stats.expired + self.expired_in_text.value(),
        );
        shown.counter(
            "pelton_turns_ended_total",
            "Preemptions of requests that had had their turn, for another key's that was due while all slots were taken.",
            stats.turns_ended,
        );
        shown.counter(
            "pelton_preempted_tokens_total",
            "Tokens whose KV was lost because a request was preempted.",
            stats.preempted_tokens,
        );
        let whys = [("own_preemption", stats.again_preempted), ("worker_lost", stats.again_lost)];
        let whys = whys.map(|(why, tokens)| ([("why", why)], tokens));
        let series = whys.iter().map(|(labels, tokens)| (labels.as_slice(), *tokens));
        shown.counters(
            "pelton_tokens_computed_again_total",
            "Tokens of prompts and answers computed once more, by what their KV was lost for.",
            series,
        );
        let whys =
            [("new", stats.new_tokens), ("evicted", stats.evicted_tokens), ("too_short", stats.too_short_tokens)];
        let whys = whys.map(|(why, tokens)| ([("why", why)], tokens));
        let series = whys.iter().map(|(labels, tokens)| (labels.as_slice(), *tokens));
        shown.counters(
            "pelton_prompt_tokens_computed_total",
            "Prompt tokens not taken from the prefix cache: never there, given up since, or held by no cache.",
            series,
        );
        shown.gauge(
            "pelton_kept_prompts",
            "Prompts kept in the prefix cache because a client wants it.",
            stats.kept_prompts,
        );
        shown.gauge("pelton_kept_blocks", "KV blocks of kept prompts, in each worker.", stats.kept_blocks);
        shown.counter(
            "pelton_keeps_refused_total",
            "Wishes to keep a prompt that could not be fulfilled.",
            stats.keeps_refused,
        );
        shown.counter(
            "pelton_kept_blocks_given_up_total",
            "KV blocks of kept prompts that were given up for want of room.",
            stats.kept_blocks_given_up,
        );
        let waits = Wait::ALL.map(|wait| ([("reason", wait.name())], stats.waited.micros(wait) as f64 / 1e6));
        let series = waits.iter().map(|(labels, seconds)| (labels.as_slice(), *seconds));
        shown.counters(
            "pelton_waited_seconds_total",
            "How long ended requests stood in the queue, by what for.",
            series,
        );
        shown.counter("pelton_requests_aborted_total", "Requests aborted in the engine.", stats.aborted);
        shown.counter("pelton_worker_restarts_total", "Workers replaced.", stats.worker_restarts);
        shown.counter("pelton_requests_replayed_total", "Requests replayed after a worker's death.", stats.replayed);
        let BadFrames { checksum, stale, unasked, contents, failed } = stats.bad_frames;
        let kinds = [
            ("checksum", checksum),
            ("stale", stale),
            ("unasked", unasked),
            ("contents", contents),
            ("failed", failed),
        ];
        let kinds = kinds.map(|(kind, count)| ([("kind", kind)], count));
        let series = kinds.iter().map(|(labels, count)| (labels.as_slice(), *count));
        shown.counters("pelton_bad_frames_total", "Results that failed their check, by what was wrong.", series);
        shown.counter("pelton_steps_overdue_total", "Steps that passed their deadline.", stats.overdue_steps);
        shown.gauge("pelton_requests_suspected", "Requests suspected to end workers.", stats.suspects);
        shown.gauge("pelton_requests_withheld", "Requests that wait until suspects are cleared.", stats.withheld);
        shown.counter("pelton_requests_condemned_total", "Requests refused because they end workers.", stats.condemned);
        shown.counter("pelton_engine_bugs_total", "Assertions that fired on the engine thread.", stats.bugs);
        shown.counter(
            "pelton_streams_stalled_total",
            "Streams cut because nobody read them.",
            self.stalled_streams.value(),
        );
        let labels = PHASES.map(|phase| [("phase", phase)]);
        let series = labels.iter().zip(&self.cancelled).map(|(labels, counter)| (labels.as_slice(), counter.value()));
        shown.counters("pelton_requests_cancelled_total", "Answers whose client left, by where they were.", series);
    }

    fn http_text(&self) -> String {
        let all: Vec<_> = {
            let all = self.http.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().map(|(key, series)| (key.clone(), Arc::clone(series))).collect()
        };
        let labels: Vec<_> = all
            .iter()
            .map(|(labels, _)| [("handler", &*labels.route), ("method", &*labels.method), ("status", labels.status)])
            .collect();
        let mut shown = Exposition::new(String::new());
        let requests =
            labels.iter().zip(&all).map(|(labels, (_, series))| (labels.as_slice(), series.requests.value()));
        shown.counters("http_requests_total", "HTTP requests answered.", requests);
        let durations = labels.iter().zip(&all).map(|(labels, (_, series))| (labels.as_slice(), &series.duration));
        shown.histograms("http_request_duration_seconds", "Until the response began.", durations);
        shown.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(metrics: &Metrics) -> String {
        let status =
            Status { phase: Phase::Loading { stage: "weights".into(), done: 1, total: 2 }, budget: None, model: None };
        metrics.show(&Stats::default(), &status, 1_700_000_000)
    }

    #[test]
    fn what_was_loaded_is_told_after_loading_too() {
        let metrics = Metrics::new("demo", 4096);
        metrics.loading(7);
        metrics.loading(0);
        let ready = Status { phase: Phase::Ready, budget: None, model: None };
        let text = metrics.show(&Stats::default(), &ready, 1_700_000_000);
        for name in ["pelton_load_done_bytes", "pelton_load_total_bytes"] {
            assert!(text.contains(&format!("{name}{{model_name=\"demo\",engine=\"0\"}} 7\n")), "{text}");
        }
    }

    #[test]
    fn the_gauges_that_balancers_read_are_there_before_the_model_is() {
        let text = shown(&Metrics::new("demo", 4096));
        for line in [
            "vllm:num_requests_running{model_name=\"demo\",engine=\"0\"} 0",
            "vllm:num_requests_waiting{model_name=\"demo\",engine=\"0\"} 0",
            "vllm:kv_cache_usage_perc{model_name=\"demo\",engine=\"0\"} 0",
            "vllm:admission_rejections_total{model_name=\"demo\",engine=\"0\",reason=\"wait\"} 0",
            "# TYPE vllm:cache_config_info gauge",
            "# TYPE vllm:lora_requests_info gauge",
            "pelton_load_total_bytes{model_name=\"demo\",engine=\"0\"} 2",
            "vllm:request_success_total{model_name=\"demo\",engine=\"0\",finished_reason=\"stop\"} 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}");
        }
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn every_family_is_typed_and_stands_once() {
        let metrics = Metrics::new("demo", 4096);
        metrics.http_answered("/health", "GET", 200, Duration::from_millis(2));
        metrics.http_answered("/health", "GET", 503, Duration::from_millis(2));
        let text = shown(&metrics);
        let mut typed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let count = typed.len();
        typed.dedup();
        typed.sort_unstable();
        typed.dedup();
        assert_eq!(typed.len(), count);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split('{').next().expect("a name");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(typed.iter().any(|family| family.split(' ').next() == Some(base)), "{line}");
        }
    }
}
