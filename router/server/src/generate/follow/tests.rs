//! Answers, token by token: what is shown of them and how they end.

use pelton_engine::{Micros, RequestId};
use pelton_text::{Certain, Format, Reading, Tools};
use serde_json::json;

use super::*;
use crate::generate::testing::{END, tokenizer, tokens};
use crate::generate::thinking::budget;
use crate::generate::{Apart, Repetition};

fn rules() -> TextRules {
    TextRules {
        stop: Vec::new(),
        include_stop: false,
        stop_ids: [b'#'.into(), END].into(),
        eos_ids: vec![END],
        max_tokens: 1000,
        min_tokens: 0,
        repetition: None,
        skip_special: true,
        tools: None,
        form: None,
        thoughts: None,
        prompt: 7,
        behind: Vec::new(),
    }
}

fn explanation() -> Box<Explanation> {
    Box::new(Explanation::new(RequestId(1), Micros(0), None, 7))
}

/// What is shown of an answer of these tokens, and how it ends. `None` after the tokens: by its length.
fn follow(mut rules: TextRules, answer: &[u32]) -> Delta {
    rules.max_tokens = u32::try_from(answer.len()).expect("short");
    let mut follower = Follower::new(&tokenizer(), Arc::new(rules.clone()));
    let mut delta = Delta::default();
    let mut push = |output| follower.push(output, &mut delta).expect("no failure was pushed");
    assert_eq!(push(Output::Admitted { cached: 3 }), Followed::Going);
    for (count, &token) in (1..).zip(answer) {
        match push(Output::Token { token, logprobs: Some(Box::default()) }) {
            Followed::Going => {}
            Followed::Enough => return delta,
            Followed::Over => panic!("the engine has not ended the answer"),
        }
        if rules.stop_ids.contains(&token) {
            let usage = Usage { prompt: 7, cached: 3, completion: count };
            assert_eq!(
                push(Output::Finished { reason: FinishReason::StopToken(token), usage, explanation: explanation() }),
                Followed::Over
            );
            return delta;
        }
    }
    let completion = u32::try_from(answer.len()).expect("short");
    let usage = Usage { prompt: 7, cached: 3, completion };
    assert_eq!(
        push(Output::Finished { reason: FinishReason::Length, usage, explanation: explanation() }),
        Followed::Over
    );
    delta
}

/// What was said, by kinds.
fn said(delta: &Delta) -> Apart {
    delta.said.clone().apart()
}

#[track_caller]
fn check(rules: TextRules, answer: &[u32], text: &str, ending: Ending, completion: u32) {
    let delta = follow(rules, answer);
    let finish = delta.finish.clone().expect("it has ended");
    assert_eq!((said(&delta).text.as_str(), &finish.ending), (text, &ending));
    assert_eq!(finish.usage, Usage { prompt: 7, cached: 3, completion });
    assert_eq!(delta.tokens.len(), completion as usize);
}

fn stopping_at(stop: &[&str]) -> TextRules {
    TextRules { stop: stop.iter().map(|text| (*text).to_owned()).collect(), ..rules() }
}

fn by_text(text: &str) -> Ending {
    Ending::Stop(StopCause::Text(text.to_owned()))
}

#[test]
fn an_answer_completes_a_character_that_its_prompt_has_begun() {
    let smile = "😀".as_bytes();
    let [begun, rest] =
        [&smile[..2], &smile[2..]].map(|bytes| bytes.iter().copied().map(u32::from).collect::<Vec<_>>());
    let goes_on = TextRules { behind: begun, ..rules() };
    assert_eq!(said(&follow(goes_on, &rest)).text, "😀");
    assert_eq!(said(&follow(rules(), &rest)).text, "\u{FFFD}\u{FFFD}");
}

#[test]
fn scores_of_a_prompt_come_at_once_and_a_token_that_nobody_wanted_is_not_told() {
    let rules = TextRules { max_tokens: 0, prompt: 4, ..rules() };
    let mut follower = Follower::new(&tokenizer(), Arc::new(rules));
    let score = |rank| TokenScore { rank, ..TokenScore::default() };
    let mut push = |output, delta: &mut Delta| follower.push(output, delta).expect("no failure was pushed");
    let mut delta = Delta::default();
    push(Output::Scored(Box::new([score(1), score(2)])), &mut delta);
    assert!(delta.is_empty());
    push(Output::Scored(Box::new([score(3)])), &mut delta);
    assert_eq!(delta.scores, [score(1), score(2), score(3)]);
    assert!(!delta.is_empty());
    push(Output::Token { token: 65, logprobs: None }, &mut delta);
    let usage = Usage { prompt: 4, cached: 0, completion: 1 };
    let reason = FinishReason::StopToken(END);
    assert_eq!(push(Output::Finished { reason, usage, explanation: explanation() }, &mut delta), Followed::Over);
    assert!(said(&delta).text.is_empty() && delta.tokens.is_empty());
    let finish = delta.finish.expect("it has ended");
    assert_eq!((finish.ending, finish.usage.completion), (Ending::Length, 0));
}

#[test]
fn a_stop_token_ends_the_answer_and_is_not_shown() {
    let answer = [tokens("hi"), vec![END]].concat();
    check(rules(), &answer, "hi", Ending::Stop(StopCause::EndOfText), 3);
    check(rules(), &tokens("hi#"), "hi", Ending::Stop(StopCause::Token(b'#'.into())), 3);
    check(rules(), &tokens("hi"), "hi", Ending::Length, 2);
}

#[test]
fn what_ended_the_answer_is_shown_on_demand() {
    let shown = TextRules { include_stop: true, ..rules() };
    check(shown, &tokens("hi#"), "hi#", Ending::Stop(StopCause::Token(b'#'.into())), 3);
    let shown = TextRules { include_stop: true, ..stopping_at(&["END"]) };
    check(shown, &tokens("go END on"), "go END", by_text("END"), 6);
}

#[test]
fn a_stop_text_ends_the_answer_wherever_its_tokens_are_cut() {
    check(stopping_at(&["END"]), &tokens("go END on"), "go ", by_text("END"), 6);
    check(stopping_at(&["€"]), &tokens("5 € more"), "5 ", by_text("€"), 5);
    check(stopping_at(&["END"]), &tokens("go EN"), "go EN", Ending::Length, 5);
    check(stopping_at(&["END"]), &tokens("go EN#"), "go EN", Ending::Stop(StopCause::Token(b'#'.into())), 6);
}

#[test]
fn a_stop_text_within_the_first_tokens_does_not_count() {
    // B:SA4
    let late = TextRules { min_tokens: 2, ..stopping_at(&["a"]) };
    check(late, &tokens("aabac"), "aab", by_text("a"), 4);
}

#[test]
fn an_answer_that_goes_round_in_circles_is_ended() {
    let twice = |min_tokens| {
        let repetition = Repetition { min_pattern: 2, max_pattern: 3, min_count: 3 };
        TextRules { repetition: Some(repetition), min_tokens, ..stopping_at(&["xbc"]) }
    };
    check(twice(0), &tokens("axbxbxbxbxb"), "axbxbxb", Ending::Repetition, 7);
    check(twice(9), &tokens("axbxbxbxbxb"), "axbxbxbxb", Ending::Repetition, 9);
    check(twice(0), &tokens("aaaababcababc"), "aaaababcababc", Ending::Length, 13);
    check(twice(0), &tokens("ababab"), "ababab", Ending::Length, 6);
    check(twice(0), &tokens("ababa#"), "ababa", Ending::Stop(StopCause::Token(b'#'.into())), 6);
    let broken = [&tokens("é")[..1], &tokens("b")].concat().repeat(4);
    check(twice(0), &broken, "\u{fffd}b\u{fffd}b\u{fffd}b", Ending::Repetition, 6);
}

#[test]
fn half_a_character_is_shown_as_broken_at_the_end_alone() {
    check(rules(), &tokens("é")[..1], "\u{fffd}", Ending::Length, 1);
    check(rules(), &tokens("é"), "é", Ending::Length, 2);
}

#[test]
fn a_token_knows_its_text_and_where_it_begins() {
    let whole = tokens("aéb€");
    for (answer, texts, offsets) in [
        (&whole[..4], vec!["a", "", "é", "b"], vec![0, 1, 1, 2]),
        (&whole[..5], vec!["a", "", "é", "b", "\u{fffd}"], vec![0, 1, 1, 2, 3]),
        (&[&whole[..5], &[END]].concat(), vec!["a", "", "é", "b", "", "\u{fffd}"], vec![0, 1, 1, 2, 3, 3]),
    ] {
        let delta = follow(rules(), answer);
        assert_eq!(delta.tokens.iter().map(|drawn| drawn.text_offset).collect::<Vec<_>>(), offsets);
        assert_eq!(said(&delta).text, texts.concat());
    }
}

const CALLS: &str = "ok <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

fn names(delta: &Delta) -> Vec<String> {
    let started = said(delta).calls.into_iter().filter_map(|piece| match piece {
        CallPiece::Start { name, .. } => Some(name),
        CallPiece::Arguments { .. } => None,
    });
    started.collect()
}

/// Rules for an answer in the Hermes form.
fn hermes(tools: Option<ToolReading>) -> TextRules {
    let format = Format::named("hermes", &tokenizer()).expect("it is known");
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let offered = Arc::new(Tools::new(&[tool("f"), tool("g")]));
    let reading = Reading { tools: tools.map(|_| offered), ..Reading::default() };
    TextRules { tools, form: Some((format, reading)), ..rules() }
}

#[test]
fn calls_are_read_only_if_tools_were_offered() {
    let delta = follow(hermes(Some(ToolReading::Parallel)), &tokens(CALLS));
    assert_eq!((names(&delta), said(&delta).text.as_str()), (vec!["f".to_owned(), "g".to_owned()], "ok"));
    assert!(delta.finish.expect("it has ended").has_calls);
    let delta = follow(hermes(Some(ToolReading::Single)), &tokens(CALLS));
    assert_eq!(names(&delta), ["f"]);
    let delta = follow(hermes(None), &tokens(CALLS));
    assert_eq!(said(&delta).text, CALLS);
    assert!(!delta.finish.expect("it has ended").has_calls);
}

#[test]
fn what_stands_behind_a_call_is_told_behind_it_and_each_token_knows_to_what_it_belongs() {
    let answer = format!("{CALLS} So.");
    let delta = follow(hermes(Some(ToolReading::Parallel)), &[tokens(&answer), vec![END]].concat());
    let text_of = |kind| {
        let bytes = delta.tokens.iter().filter(|drawn| drawn.kind == kind && drawn.token != END);
        String::from_utf8(bytes.map(|drawn| u8::try_from(drawn.token).expect("a byte")).collect()).expect("UTF-8")
    };
    let texts: Vec<Part> = delta.said.clone().into_parts().filter(|part| matches!(part, Part::Text(_))).collect();
    assert_eq!(texts, [Part::Text("ok".into()), Part::Text("So.".into())]);
    assert_eq!(delta.said.clone().into_parts().last(), texts.last().cloned());
    assert_eq!(text_of(TokenKind::Text), "okSo.");
    // What opens the first call may be text until its arguments begin.
    assert!(text_of(TokenKind::Held).starts_with(" <tool_call>\n{\"name\": \"f\", \"arguments\": "));
    assert_eq!(delta.tokens.last().expect("some").kind, TokenKind::End);
}

#[test]
fn a_call_that_is_cut_by_a_stop_text_is_none_to_run() {
    let stopping = |stop: &str| TextRules { stop: vec![stop.to_owned()], ..hermes(Some(ToolReading::Parallel)) };
    let begun = "ok <tool_call>\n{\"name\": \"f\", \"";
    for (stop, called, text, has_calls) in [
        ("arguments", vec![], begun, false),
        ("\"a\": 1", vec!["f"], "ok", false),
        ("no such", vec!["f", "g"], "ok", true),
    ] {
        let delta = follow(stopping(stop), &tokens(CALLS));
        assert_eq!(names(&delta), called, "{stop}");
        assert_eq!(said(&delta).text, text, "{stop}");
        assert_eq!(delta.finish.expect("it has ended").has_calls, has_calls, "{stop}");
    }
}

#[test]
fn a_call_that_went_wrong_is_none_to_run_and_neither_is_one_behind_it() {
    let broken = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": x}}\n</tool_call>";
    let delta =
        follow(hermes(Some(ToolReading::Parallel)), &[tokens(&format!("{broken}\n{CALLS}")), vec![END]].concat());
    assert_eq!(names(&delta), ["f", "f", "g"]);
    assert!(said(&delta).text.starts_with(broken) && !delta.finish.expect("it has ended").has_calls);
}

#[test]
fn of_several_calls_the_first_that_is_complete_is_told_where_one_is_wanted_and_others_part_texts() {
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let (good, other, broken) = (call("f", "{\"a\": 1}"), call("g", "{\"b\": 2}"), call("f", "{\"a\": x}"));
    let told = |answer: &str| follow(hermes(Some(ToolReading::Single)), &[tokens(answer), vec![END]].concat());
    let delta = told(&format!("A {good} B {other} C {other} D"));
    let parts: Vec<String> = (delta.said.clone().into_parts())
        .map(|part| match part {
            Part::Text(text) => text,
            Part::Dropped => "dropped".into(),
            Part::Call(CallPiece::Start { name, .. }) => name,
            Part::Call(CallPiece::Arguments { delta, .. }) => delta,
            Part::Thought(_) => unreachable!("it thinks nothing"),
        })
        .collect();
    assert_eq!(parts, ["A", "f", "{\"a\": 1}", "B", "dropped", "C", "dropped", "D"]);
    assert!(delta.finish.expect("it has ended").has_calls);
    let of_text: String = (delta.tokens.iter().filter(|drawn| drawn.kind == TokenKind::Text))
        .map(|drawn| char::from(u8::try_from(drawn.token).expect("a byte")))
        .collect();
    assert!(!of_text.contains("\"b\": 2"), "arguments of a call that is dropped are no text: {of_text}");

    let delta = told(&format!("{broken} {other} {good}"));
    assert_eq!(names(&delta), ["f", "g"], "the broken one has begun, and cannot be taken back");
    assert!(!delta.finish.expect("it has ended").has_calls, "nobody runs a call beside one that went wrong");

    let delta = told(&format!("{good} {broken} C"));
    assert_eq!((names(&delta).len(), said(&delta).text), (1, format!("{broken} C")));
    assert!(delta.finish.expect("it has ended").has_calls, "the one that went wrong was not told");
}

#[test]
fn what_is_held_behind_a_call_is_no_part_of_it_yet() {
    let (call, text) = ("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "\n<b>");
    let kinds = |answer: &str| {
        let delta = follow(hermes(Some(ToolReading::Parallel)), &[tokens(answer), vec![END]].concat());
        let behind = delta.tokens.into_iter().skip(call.len()).filter(|drawn| drawn.token != END);
        behind.map(|drawn| drawn.kind).collect::<Vec<_>>()
    };
    use TokenKind::{Beside, Held, Text};
    assert_eq!(kinds(&format!("{call}{text}")), [Beside, Held, Text, Text]);
    let again = kinds(&format!("{call}{call}"));
    assert!(again.iter().all(|&kind| kind == Beside || kind == Held) && again.contains(&Held), "{again:?}");
    assert_eq!(again.last(), Some(&Beside));
}

#[test]
fn a_mark_that_ends_a_text_of_a_form_is_no_part_of_it() {
    let tokenizer = crate::generate::testing::tokenizer_with(&["<|return|>"]);
    let mark = tokenizer.token_to_id("<|return|>").expect("it has it");
    let format = Format::named("harmony", &tokenizer).expect("it is known");
    let reading = Reading { has_form: true, ..Reading::default() };
    let answer = [tokens("<|channel|>final<|message|>{\"a\": \"<|end|>\"}"), vec![mark]].concat();
    let form = Some((format, reading));
    let rules = TextRules { form, include_stop: true, stop_ids: [mark].into(), eos_ids: vec![mark], ..rules() };
    let mut follower = Follower::new(&tokenizer, Arc::new(rules));
    let mut delta = Delta::default();
    for token in answer {
        follower.push(Output::Token { token, logprobs: None }, &mut delta).expect("no failure was pushed");
    }
    let usage = Usage { prompt: 7, cached: 0, completion: 40 };
    let finished = Output::Finished { reason: FinishReason::StopToken(mark), usage, explanation: explanation() };
    follower.push(finished, &mut delta).expect("no failure was pushed");
    assert_eq!(said(&delta).text, "{\"a\": \"<|end|>\"}");
}

#[test]
fn tokens_tell_how_much_was_said_with_them() {
    let delta = follow(hermes(Some(ToolReading::Parallel)), &[tokens(CALLS), vec![END]].concat());
    let size: usize = delta.said.clone().into_parts().map(|part| part.size()).sum();
    assert!(delta.tokens.is_sorted_by_key(|drawn| drawn.said));
    assert_eq!(delta.tokens.last().map(|drawn| drawn.said), Some(size));
    let marks = "<think>\nHm.\n</think>\n\n";
    let delta = follow(hermes(None), &tokens(&format!("{marks}Yes.")));
    let beside = delta.tokens.iter().filter(|drawn| drawn.kind == TokenKind::Beside).count();
    assert_eq!(beside, 2, "the line ends behind the thoughts");
}

#[test]
fn a_demanded_call_that_is_cut_shows_no_mark() {
    let demanded = || {
        let mut rules = hermes(Some(ToolReading::Parallel));
        let (format, reading) = rules.form.take().expect("it has one");
        TextRules { form: Some((format, Reading { certain: Certain::All, ..reading })), ..rules }
    };
    let call = CALLS.strip_prefix("ok ").expect("it begins so");
    for length in 1..call.len() {
        let delta = follow(demanded(), &tokens(&call[..length]));
        assert_eq!(
            (said(&delta).text.as_str(), delta.finish.clone().expect("it has ended").ending),
            ("", Ending::Length),
            "{length}"
        );
    }
    for stop in ["_call>", "name", "arguments", "</tool"] {
        let delta = follow(TextRules { stop: vec![stop.to_owned()], ..demanded() }, &tokens(call));
        assert_eq!(
            (said(&delta).text.as_str(), delta.finish.clone().expect("it has ended").ending),
            ("", by_text(stop))
        );
    }
}

#[test]
fn reasoning_stands_apart_and_its_tokens_are_counted() {
    let thoughts = "<think>\nHm.\n</think>";
    let delta = follow(hermes(None), &tokens(&format!("{thoughts}\n\nYes.")));
    assert_eq!((said(&delta).reasoning.as_str(), said(&delta).text.as_str()), ("Hm.", "Yes."));
    let counted = delta.tokens.iter().filter(|drawn| drawn.is_reasoning()).count();
    // Both marks are of many tokens here.
    assert_eq!(counted, thoughts.len());
    assert!(delta.tokens[..counted].iter().all(|drawn| drawn.is_reasoning()), "they are the first");
    assert_eq!(delta.finish.expect("it has ended").reasoning_tokens, u32::try_from(counted).ok());
    assert_eq!(follow(rules(), &tokens("a")).finish.expect("it has ended").reasoning_tokens, None);
}

#[test]
fn the_forced_end_of_thoughts_is_none_however_it_is_cut() {
    let bounded = |stop: &[&str]| {
        let rules = TextRules { stop: stopping_at(stop).stop, ..hermes(None) };
        let (format, _) = rules.form.as_ref().expect("it has one");
        let reading = Reading { starts_in_reasoning: true, ..Reading::default() };
        let detokenizer = Detokenizer::new(tokenizer(), true);
        let thoughts = budget(detokenizer, format, reading.clone(), 6, tokens("</think>"));
        TextRules { form: Some((format.clone(), reading)), thoughts: Some(thoughts), ..rules }
    };
    let whole = tokens("a < b\n</think>");
    for length in 7..=whole.len() {
        assert_eq!(said(&follow(bounded(&[]), &whole[..length])).reasoning, "a < b", "{length}");
    }
    // Where the stop text is the whole of what there is of the mark, there is no mark.
    for (stop, reasoning) in
        [("hi", "a < b"), ("nk>", "a < b"), ("k>yes", "a < b"), ("</th", "a < b\n"), ("</think>", "a < b\n")]
    {
        let delta = follow(bounded(&[stop]), &whole);
        assert_eq!((said(&delta).reasoning.as_str(), said(&delta).text.as_str()), (reasoning, ""), "{stop}");
    }
    assert_eq!(said(&follow(bounded(&[]), &tokens("a </t"))).reasoning, "a </t", "it could have gone on otherwise");
    assert_eq!(said(&follow(bounded(&[]), &tokens("a < b\n"))).reasoning, "a < b\n");
}

/// How many tokens are told as reasoning; all are told, in their order.
#[track_caller]
fn check_reasoning(rules: TextRules, answer: &[u32], expected: usize) {
    let delta = follow(rules, answer);
    assert_eq!(delta.tokens.iter().map(|drawn| drawn.token).collect::<Vec<_>>(), answer);
    let counted = delta.tokens.iter().filter(|drawn| drawn.is_reasoning()).count();
    assert_eq!(counted, expected);
    assert_eq!(delta.finish.expect("it has ended").reasoning_tokens, u32::try_from(counted).ok());
}

#[test]
fn the_tokens_of_a_mark_are_flagged_when_it_turns_out_to_be_one() {
    check_reasoning(hermes(None), &tokens("<thing> and <think>"), 0);
    check_reasoning(hermes(None), &tokens("<thi"), 0);
    check_reasoning(hermes(None), &tokens("\n<<think>Hm."), 0);
    check_reasoning(hermes(None), &tokens("\n<think>Hm."), "<think>Hm.".len());
    let stopping = TextRules { stop: vec!["<x>".to_owned()], ..hermes(None) };
    check_reasoning(stopping.clone(), &tokens("<think>Hm."), "<think>Hm.".len());
    check_reasoning(stopping, &tokens("<think>Hm.</think>Yes<x>"), "<think>Hm.</think>".len());
    // The first byte of a mark whose first character has three.
    let declaration = "name = 'x'\n[reasoning]\nopen = ['◁t▷']\nclose = ['◁/t▷']";
    let format = Format::declared(declaration, &tokenizer()).expect("it is right");
    let rules = TextRules { form: Some((format, Reading::default())), ..rules() };
    check_reasoning(rules.clone(), &tokens("◁t▷Hm.◁/t▷Yes."), "◁t▷Hm.◁/t▷".len());
    check_reasoning(rules, &tokens("€ 5"), 0);
}

#[test]
fn a_header_of_thoughts_on_a_channel_is_a_mark_around_them() {
    let names = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|return|>", "<|call|>"];
    let tokenizer = crate::generate::testing::tokenizer_with(&names);
    let ids = |text: &str| tokenizer.encode(text, false).expect("a text");
    let format = Format::named("harmony", &tokenizer).expect("it is known");
    let answer =
        [ids("<|channel|>analysis<|message|>Hm.<|end|>"), ids("<|start|>assistant<|channel|>final<|message|>Yes.")];
    let mut follower = Follower::new(
        &tokenizer,
        Arc::new(TextRules { form: Some((format, Reading::default())), stop_ids: [].into(), ..rules() }),
    );
    let mut delta = Delta::default();
    for token in answer.concat() {
        follower.push(Output::Token { token, logprobs: None }, &mut delta).expect("no failure");
    }
    let flags: Vec<bool> = delta.tokens.iter().map(|drawn| drawn.is_reasoning()).collect();
    assert_eq!(flags, [vec![true; answer[0].len()], vec![false; answer[1].len()]].concat());
    assert_eq!((said(&delta).reasoning.as_str(), said(&delta).text.as_str()), ("Hm.", "Yes."));
}

#[test]
fn marks_that_are_special_tokens_are_found_and_not_shown() {
    let declaration = "name = 'x'\n[reasoning]\nopen = ['<end>']\nclose = ['</end>']";
    let format = Format::declared(declaration, &tokenizer()).expect("it is right");
    let answer = [vec![END], tokens("Hm.</end>Yes."), vec![END]].concat();
    let form = Some((format, Reading::default()));
    let delta = follow(TextRules { form, stop_ids: [].into(), ..rules() }, &answer);
    assert_eq!((said(&delta).reasoning.as_str(), said(&delta).text.as_str()), ("Hm.", "Yes."));
}

#[test]
fn a_failure_is_passed_on() {
    let mut follower = Follower::new(&tokenizer(), Arc::new(rules()));
    let failure = Failure::Internal("broken".to_owned());
    assert_eq!(follower.push(Output::Failed(failure.clone()), &mut Delta::default()), Err(failure));
}
