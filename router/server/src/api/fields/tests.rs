//! Every error names the field, what it got and what is allowed.

use super::*;
use crate::api::shape::{Kind, Most, needed, optional};

const INNER: Shape = Shape::new("Inner", "An object.", &[&[optional("include_usage", Kind::Flag, "A flag.")]]);
const ITEM: Shape = Shape::new("Item", "An item.", &[&[needed("role", Kind::TEXT, "A text.")]]);
const BODY: Shape = Shape::new(
    "Body",
    "A body.",
    &[&[
        optional("max_tokens", Kind::COUNT, "A count."),
        optional("stream", Kind::Flag, "A flag."),
        optional("tokens", Kind::TokenIds(0, Most::ANY), "Tokens."),
        optional("stream_options", Kind::Object(&INNER), "An object."),
        optional("messages", Kind::List(&Kind::Object(&ITEM), 0, Most::ANY), "Objects."),
    ]],
);

fn error(body: &str) -> String {
    let read = |body: &str| -> Result<(), ApiError> {
        let mut fields = Fields::of_body(body.as_bytes())?;
        fields.count("max_tokens", "an integer from 0 to 9")?;
        fields.flag("stream")?;
        fields.token_ids("tokens")?;
        if let Some(mut inner) = fields.object("stream_options")? {
            inner.flag("include_usage")?;
            inner.finish(&INNER)?;
        }
        for mut item in fields.objects("messages")?.unwrap_or_default() {
            item.need::<String>("role", "a text")?;
            item.finish(&ITEM)?;
        }
        fields.finish(&BODY)
    };
    read(body).map_or_else(|error| error.to_string(), |()| String::new())
}

#[test]
fn what_is_known_and_right_is_read() {
    assert_eq!(error(r#"{}"#), "");
    assert_eq!(error(r#" {"max_tokens": 5, "stream": null, "messages": [{"role": "user"}]} "#), "");
}

#[test]
fn a_whole_number_is_one_however_it_is_written() {
    for number in ["5", "5.0", "50e-1"] {
        let body = format!(r#"{{"max_tokens": {number}, "tokens": [1, {number}]}}"#);
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        assert_eq!(fields.count("max_tokens", "an integer from 0 to 9"), Ok(Some(5)), "{number}");
        assert_eq!(fields.token_ids("tokens"), Ok(Some(vec![1, 5])), "{number}");
    }
    for number in ["5.5", "-1.0", "4294967296.0", "1e300", "18014398509481985.0"] {
        assert!(error(&format!(r#"{{"max_tokens": {number}}}"#)).contains("allowed: an integer"), "{number}");
        assert!(error(&format!(r#"{{"tokens": [{number}]}}"#)).contains("allowed: a list of token ids"), "{number}");
    }
}

#[test]
fn a_wrong_value_is_named_shown_and_corrected() {
    for (body, expected) in [
        (r#"{"max_tokens": "5"}"#, "`max_tokens` is the text \"5\"; allowed: an integer from 0 to 9"),
        (r#"{"max_tokens": 1.5}"#, "`max_tokens` is 1.5; allowed: an integer from 0 to 9"),
        (r#"{"max_tokens": -1}"#, "`max_tokens` is -1; allowed: an integer from 0 to 9"),
        (r#"{"stream": 1}"#, "`stream` is 1; allowed: true or false"),
        (r#"{"stream_options": [1]}"#, "`stream_options` is a list; allowed: an object"),
        (
            r#"{"stream_options": {"include_usage": "yes"}}"#,
            "`stream_options.include_usage` is the text \"yes\"; allowed: true or false",
        ),
        (r#"{"messages": {"role": "user"}}"#, "`messages` is an object; allowed: a list of objects"),
        (r#"{"messages": [{"role": "user"}, {}]}"#, "`messages[1].role` is missing; it must be a text"),
        (
            r#"{"tokens": [5, -1]}"#,
            "`tokens` is a list whose item 1 is -1; allowed: a list of token ids, integers from 0 to 4294967295",
        ),
        (r#"{"tokens": 5}"#, "`tokens` is 5; allowed: a list of token ids, integers from 0 to 4294967295"),
        (r#"{"messages": [3]}"#, "`messages[0]` is 3; allowed: an object"),
    ] {
        assert_eq!(error(body), expected, "{body}");
    }
}

#[test]
fn what_is_wrong_within_a_list_or_an_object_is_shown() {
    let fields = |body: &'static str| Fields::of_body(body.as_bytes()).expect("an object");
    let number = |body| fields(body).number("t", &(0.0..=2.0)).map_err(|error| error.to_string());
    assert_eq!(number(r#"{"t": 0.5}"#), Ok(Some(0.5)));
    assert_eq!(number(r#"{"t": 1e-46}"#), Ok(Some(f32::MIN_POSITIVE)), "what is not quite nothing stays so");
    assert_eq!(number(r#"{"t": 0.0}"#), Ok(Some(0.0)));
    for (body, expected) in [
        (r#"{"t": 1e308}"#, "`t` is 1e308; allowed: a number from 0 to 2"),
        (r#"{"t": -1e-46}"#, "`t` is -1e-46; allowed: a number from 0 to 2"),
        (r#"{"t": 2.0000001}"#, "`t` is 2.0000001; allowed: a number from 0 to 2"),
        (r#"{"t": -1e999}"#, "`t` is -1e999; allowed: a number from 0 to 2"),
        (r#"{"t": "1"}"#, "`t` is the text \"1\"; allowed: a number from 0 to 2"),
    ] {
        assert_eq!(number(body), Err(expected.to_owned()), "{body}");
    }
    let above = fields(r#"{"t": 1e39}"#).number("t", &(f32::MIN_POSITIVE..=1.0)).expect_err("too large");
    assert_eq!(above.to_string(), "`t` is 1e39; allowed: a number above 0, at most 1");
    let tenth = |body: &'static str| fields(body).number("t", &(0.1..=1.0));
    assert_eq!(tenth(r#"{"t": 0.1}"#), Ok(Some(0.1)), "a bound as it is written");
    assert!(tenth(r#"{"t": 0.09999999999}"#).is_err());
    let texts = |body| fields(body).texts("t", "a list of texts").expect_err("wrong").to_string();
    assert_eq!(texts(r#"{"t": ["a", 1]}"#), "`t` is a list whose item 1 is 1; allowed: a list of texts");
    assert_eq!(texts(r#"{"t": "a"}"#), "`t` is the text \"a\"; allowed: a list of texts");
    let named = |body| fields(body).named_texts("t").expect_err("wrong").to_string();
    assert!(named(r#"{"t": {"a": "b", "c": null}}"#).starts_with("`t` is an object whose \"c\" is null; allowed: "));
    assert!(named(r#"{"t": [1]}"#).starts_with("`t` is a list; allowed: "));
}

#[test]
fn an_unknown_field_is_refused_with_the_nearest_name() {
    for (body, expected) in [
        (r#"{"max_token": 5}"#, "`max_token` is not a parameter of this request; did you mean `max_tokens`?"),
        (
            r#"{"stream_options": {"include_usages": true}}"#,
            "`stream_options.include_usages` is not a parameter of this request; did you mean `include_usage`?",
        ),
        (r#"{"zzz": 5}"#, "`zzz` is not a parameter of this request"),
        (r#"{"zzz": null}"#, "`zzz` is not a parameter of this request"),
        (r#"{"stream": true, "stream": false}"#, "`stream` is given twice"),
    ] {
        assert_eq!(error(body), expected, "{body}");
    }
}

#[test]
fn what_is_no_object_is_no_request() {
    for body in ["", "{", "[1]", "5", "{\"a\":}", "\u{feff}{}", "{} {}", "{\"a\":1,}", "nul"] {
        assert!(error(body).starts_with("the body is not a JSON object"), "{body}: {}", error(body));
    }
    assert!(Fields::of_body(b"{\"a\": \"\xff\"}").is_err(), "not UTF-8");
}

#[test]
fn nesting_is_bounded_before_it_is_followed() {
    let nested = |depth: usize| format!("{{\"a\": {}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert!(error(&nested(64)).contains("`a` is not"));
    assert!(error(&nested(65)).starts_with("`a` is 64 lists and objects within each other; allowed: at most 64"));
    assert!(error(&"[".repeat(1_000_000)).starts_with("the body is not a JSON object"));
    assert!(error(&("[".repeat(1_000_000) + &"]".repeat(1_000_000))).ends_with("it is an empty list"));
    assert!(error(r#"{"a": "[[[[\"[[[[[["}"#).contains("`a` is not"), "brackets in texts are text");
}

#[test]
fn a_long_value_is_shortened_in_the_error() {
    let message = error(&format!(r#"{{"max_tokens": "{}"}}"#, "é".repeat(10_000)));
    assert!(message.len() < 250, "{message}");
}

#[test]
fn too_many_values_are_refused_by_the_field_that_has_most() {
    let messages = |count: usize| format!("[{}]", vec![r#"{"role": "user"}"#; count].join(","));
    let body = |count: usize| format!(r#"{{"stream": true, "messages": {}}}"#, messages(count));
    assert_eq!(error(&body(1000)), "");
    assert_eq!(
        error(&body(150_000)),
        "`messages` is 150000 items, 300001 values in all; allowed: at most 131072 texts, numbers, lists and objects in a request, its lists of \
         token ids aside"
    );
    // Each of two has less.
    let both = format!(r#"{{"stream_options": {0}, "messages": [{{"role": {0}}}]}}"#, messages(40_000));
    assert!(error(&both).starts_with("`messages` is 1 items, 80003 values in all"), "{}", error(&both));
    // Numbers may be token ids, of which there may be many.
    let ids = vec!["1"; 300_000].join(",");
    assert_eq!(error(&format!(r#"{{"tokens": [{ids}]}}"#)), "");
    assert_eq!(error(&format!(r#"{{"messages": [{ids}]}}"#)), "`messages` is a list; allowed: a list of objects");
    let within = error(&format!(r#"{{"messages": [{{"role": [{ids}]}}]}}"#));
    assert!(within.starts_with("`messages` is 1 items, 300003 values in all"), "{within}");
    assert!(error(&format!(r#"{{"tokens": [{ids}, -1]}}"#)).contains("item 300000 is -1"));
}

#[test]
fn names_are_bounded_in_time_and_in_the_error() {
    let many: Vec<String> = (0..100_000).map(|number| format!("\"n{number}\": 1")).collect();
    assert!(error(&format!("{{{}}}", many.join(","))).starts_with("`n0` is not a parameter"));
    let more = vec!["\"n\": 1"; 200_000].join(",");
    assert!(error(&format!("{{{more}}}")).contains("it has 200000 fields or items; allowed: at most 131072"));
    let message = error(&format!("{{\"{}\": 1}}", "x".repeat(10_000_000)));
    assert!(message.len() < 200, "{message}");
}
