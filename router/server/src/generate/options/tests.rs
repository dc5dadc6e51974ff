use super::*;

const LIMITS: ApiLimits = ApiLimits::DEFAULT;

fn facts(defaults: &GenerationDefaults) -> ModelFacts<'_> {
    let eos_ids = &[2, 3];
    ModelFacts { vocab_size: 100, max_model_len: 64, eos_ids, defaults, limits: &LIMITS, separates_tokens: true }
}

/// The parameter that is refused, if one is.
fn refused(options: &Options) -> Option<String> {
    let defaults = GenerationDefaults::default();
    let facts = facts(&defaults);
    let all = options
        .sampling(&facts, 0)
        .map(drop)
        .and_then(|()| options.stop_ids(false, &facts).map(drop))
        .and_then(|()| options.check_rest(&facts))
        .and_then(|()| options.max_tokens(10, false, false, &facts).map(drop));
    match all {
        Ok(()) => None,
        Err(ApiError::Invalid { param, .. } | ApiError::Conflict { param, .. }) => Some(param),
        Err(other) => panic!("{other}"),
    }
}

fn check(change: impl FnOnce(&mut Options), expected: Option<&str>) {
    let mut options = Options::default();
    change(&mut options);
    assert_eq!(refused(&options).as_deref(), expected, "{options:?}");
}

#[test]
fn what_is_told_of_integers_is_what_is_asked_of_them() {
    assert_eq!(told::N, format!("an integer from 1 to {}", LIMITS.max_n));
    assert_eq!(told::LOGPROBS, format!("an integer from 0 to {}", LIMITS.max_logprobs));
    let all = |least: i64, most: i64| format!("an integer from {least} to {most}");
    assert_eq!([told::COUNT, told::COUNT_FROM_1], [all(0, u32::MAX.into()), all(1, u32::MAX.into())]);
    assert_eq!([told::SIGNED, told::LONG], [all(i32::MIN.into(), i32::MAX.into()), all(i64::MIN, i64::MAX)]);
    assert!(told::TOP_K.ends_with(&all(1, *bounds::TOP_K.end())));
}

#[test]
fn what_is_out_of_range_is_refused_by_name() {
    check(|_| {}, None);
    check(|o| o.temperature = Some(2.0), None);
    check(|o| o.temperature = Some(2.1), Some("temperature"));
    check(|o| o.temperature = Some(-0.1), Some("temperature"));
    check(|o| o.temperature = Some(f32::NAN), Some("temperature"));
    check(|o| o.top_p = Some(0.0), Some("top_p"));
    check(|o| o.top_p = Some(1.0), None);
    check(|o| o.top_k = Some(-1), None);
    check(|o| o.top_k = Some(-2), Some("top_k"));
    check(|o| o.min_p = Some(1.1), Some("min_p"));
    check(|o| o.repetition_penalty = Some(0.0), Some("repetition_penalty"));
    check(|o| o.repetition_penalty = Some(f32::INFINITY), Some("repetition_penalty"));
    check(|o| o.repetition_penalty = Some(f32::MIN_POSITIVE), Some("repetition_penalty"));
    check(|o| o.repetition_penalty = Some(0.001), None);
    check(|o| o.presence_penalty = Some(-2.5), Some("presence_penalty"));
    check(|o| o.frequency_penalty = Some(2.5), Some("frequency_penalty"));
    check(|o| o.logprobs = Some(20), None);
    check(|o| o.logprobs = Some(21), Some("logprobs"));
    check(|o| (o.logprobs, o.told) = (Some(0), vec![3; 20]), None);
    check(|o| (o.logprobs, o.told) = (Some(0), vec![3; 21]), Some("logprob_token_ids"));
    check(|o| (o.logprobs, o.told) = (Some(5), vec![u32::MAX]), Some("logprob_token_ids"));
    check(|o| o.told = vec![3], Some("logprob_token_ids"));
    check(
        |o| (o.logprobs, o.told, o.beams) = (Some(1), vec![3], Some(BeamSearch::default())),
        Some("logprob_token_ids"),
    );
    check(|o| o.prompt_logprobs = Some(20), None);
    check(|o| o.prompt_logprobs = Some(21), Some("prompt_logprobs"));
    check(|o| o.n = 0, Some("n"));
    check(|o| o.n = 129, Some("n"));
    check(|o| o.cache_salt = Some(String::new()), Some("cache_salt"));
    check(|o| o.keep = Some(KEEP_MAX), None);
    check(|o| o.keep = Some(KEEP_MAX + Duration::from_secs(1)), Some(PROMPT_CACHE_RETENTION));
    check(|o| o.stop = vec![String::new()], Some("stop"));
    check(|o| o.stop = vec!["x".into(); 5], Some("stop"));
    check(|o| o.max_tokens = Some(0), Some("max_tokens"));
    check(|o| o.max_tokens = Some(64), None);
    check(|o| o.max_tokens = Some(65), Some("max_tokens"));
    check(|o| o.min_tokens = 17, Some("min_tokens"));
}

#[test]
fn lists_of_ids_are_bounded_and_within_the_vocabulary() {
    // B:SA2
    check(|o| o.logit_bias = vec![(1, 0.0); 1024], None);
    check(|o| o.logit_bias = vec![(1, 0.0); 1025], Some("logit_bias"));
    check(|o| o.stop_token_ids = vec![1; 128], None);
    check(|o| o.stop_token_ids = vec![1; 129], Some("stop_token_ids"));
    // B:SA3
    check(|o| o.logit_bias = vec![(99, 1.0)], None);
    check(|o| o.logit_bias = vec![(100, 1.0)], Some("logit_bias"));
    check(|o| o.stop_token_ids = vec![100], Some("stop_token_ids"));
    check(|o| o.logit_bias = vec![(1, 100.5)], Some("logit_bias"));
    check(|o| o.words.allowed = Some(vec![0, 99]), None);
    check(|o| o.words.allowed = Some(vec![]), Some("allowed_token_ids"));
    check(|o| o.words.allowed = Some(vec![0, 100]), Some("allowed_token_ids"));
    check(|o| o.words.bad = vec!["x".into(); 128], None);
    check(|o| o.words.bad = vec!["x".into(); 129], Some("bad_words"));
    check(|o| o.words.bad = vec![String::new()], Some("bad_words"));
}

#[test]
fn the_request_goes_before_the_model_and_the_model_before_openai() {
    let model = GenerationDefaults { temperature: Some(0.5), top_k: Some(20), ..GenerationDefaults::default() };
    let asked = Options { temperature: Some(0.25), ..Options::default() };
    let sampling = asked.sampling(&facts(&model), 7).expect("valid");
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed), (0.25, 20, 1.0, 7));
    let sampling = Options::default().sampling(&facts(&model), 7).expect("valid");
    assert_eq!(sampling.temperature, 0.5);
}

#[test]
fn defaults_that_would_refuse_every_request_are_refused_themselves() {
    let with = |change: fn(&mut GenerationDefaults)| {
        let mut defaults = GenerationDefaults::default();
        change(&mut defaults);
        check_defaults(&defaults).map_err(|error| error.to_string())
    };
    assert_eq!(with(|_| ()), Ok(()));
    assert_eq!(with(|d| d.temperature = Some(0.0)), Ok(()));
    assert_eq!(with(|d| (d.top_k, d.top_p, d.max_new_tokens) = (Some(50), Some(0.9), Some(2048))), Ok(()));
    for (change, name) in [
        ((|d| d.temperature = Some(-5.0)) as fn(&mut GenerationDefaults), "`temperature` is -5"),
        (|d| d.top_k = Some(-2), "`top_k` is -2"),
        (|d| d.top_p = Some(0.0), "`top_p` is 0"),
        (|d| d.min_p = Some(2.0), "`min_p` is 2"),
        (|d| d.repetition_penalty = Some(0.0), "`repetition_penalty` is 0"),
        (|d| d.max_new_tokens = Some(0), "`max_new_tokens` is 0"),
    ] {
        let refused = with(change).expect_err(name);
        assert!(refused.contains(name), "{refused}");
    }
}

#[test]
fn a_seed_is_kept_and_minus_one_is_none() {
    let defaults = GenerationDefaults::default();
    for (asked, expected) in [(None, 7), (Some(-1), 7), (Some(5), 5), (Some(-2), u64::MAX - 1)] {
        let options = Options { seed: asked, ..Options::default() };
        assert_eq!(options.sampling(&facts(&defaults), 7).expect("valid").seed, expected);
    }
}

#[test]
fn the_models_end_tokens_count_unless_ignored() {
    let defaults = GenerationDefaults::default();
    let mut options = Options { stop_token_ids: vec![9, 2], ..Options::default() };
    assert_eq!(*options.stop_ids(false, &facts(&defaults)).expect("valid"), [2, 3, 9]);
    options.ignore_eos = true;
    assert_eq!(*options.stop_ids(false, &facts(&defaults)).expect("valid"), [2, 9]);
    assert_eq!(*options.stop_ids(true, &facts(&defaults)).expect("valid"), [2, 3, 9]);
}

#[test]
fn an_answer_gets_the_room_that_the_prompt_leaves() {
    let defaults = GenerationDefaults::default();
    let facts = facts(&defaults);
    let asked = |max_tokens| Options { max_tokens, ..Options::default() };
    assert_eq!(asked(None).max_tokens(10, false, false, &facts), Ok(16));
    assert_eq!(asked(None).max_tokens(10, true, false, &facts), Ok(54));
    assert_eq!(asked(None).max_tokens(60, false, false, &facts), Ok(4));
    assert_eq!(asked(Some(64)).max_tokens(10, false, false, &facts), Ok(54));
    for prompt in [10, 64] {
        assert_eq!(asked(Some(0)).max_tokens(prompt, false, true, &facts), Ok(0));
    }
    let told = Options { prompt_logprobs: Some(1), ..asked(Some(0)) };
    for (options, prompt) in [(asked(Some(0)), 65), (told, 64), (asked(None), 64)] {
        assert!(matches!(options.max_tokens(prompt, false, true, &facts), Err(ApiError::PromptTooLong { .. })));
    }
    for prompt in [64, 65, usize::MAX] {
        assert!(matches!(asked(Some(1)).max_tokens(prompt, false, false, &facts), Err(ApiError::PromptTooLong { .. })));
    }
}
