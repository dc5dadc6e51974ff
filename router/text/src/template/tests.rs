//! The golden answers are in `tests/golden.rs`; here is what `transformers` has no answer for.

use super::*;
use serde_json::json;

pub(super) fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_sources(BTreeMap::from([("default".to_owned(), source.to_owned())]), Map::new()).expect("parses")
}

fn chat(messages: Value) -> ChatInput {
    ChatInput { messages: serde_json::from_value(messages).expect("a list"), ..ChatInput::default() }
}

fn hello() -> ChatInput {
    chat(json!([{"role": "user", "content": "Hello"}]))
}

#[test]
fn a_template_that_does_not_parse_is_refused_when_opened() {
    for source in ["{% if %}", "{{ x", "{% generation %}", "{% endfor %}", "{{ 'a' | nonsense }} {% for"] {
        let opened =
            ChatTemplate::from_sources(BTreeMap::from([("default".to_owned(), source.to_owned())]), Map::new());
        assert!(matches!(opened, Err(TemplateError::Invalid { .. })), "{source}");
    }
}

#[test]
fn an_exception_of_the_template_is_told_as_it_is() {
    let refused = template("{% macro m() %}{{ raise_exception('Roles must ' ~ 'alternate') }}{% endmacro %}{{ m() }}")
        .render(&hello());
    assert_eq!(refused, Err(TemplateError::Raised("Roles must alternate".into())));
    let without = template("{{ raise_exception(nothing) }}").render(&hello());
    assert_eq!(without, Err(TemplateError::Raised("(no reason)".into())));
}

#[test]
fn an_endless_template_ends() {
    let source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(template(source).render(&hello()), Err(TemplateError::TooMuchWork { limit: FUEL }));
    let source = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}";
    assert!(matches!(template(source).render(&hello()), Err(TemplateError::Broken(_))));
}

#[test]
fn a_template_that_renders_no_chat_at_all_is_the_operators_fault() {
    for source in ["{{ messages | no_such_filter }}", "{{ no.such.thing }}", "{{ no_such_function() }}"] {
        assert!(matches!(template(source).render(&hello()), Err(TemplateError::Broken(_))), "{source}");
    }
    // Some chats it renders, so it is the chat.
    let calls = template("{% for m in messages %}{% if m.name %}{{ m.name.first.second }}{% endif %}{% endfor %}");
    let named = chat(json!([{"role": "user", "content": "x", "name": "me"}]));
    assert!(matches!(calls.render(&named), Err(TemplateError::Failed(_))));
}

#[test]
fn output_is_bounded() {
    let source = "{% for a in range(90000) %}{{ messages[0].content }}{% endfor %}";
    let long = chat(json!([{"role": "user", "content": "x".repeat(1000)}]));
    assert_eq!(template(source).render(&long), Err(TemplateError::TooLong { limit_bytes: OUTPUT_BYTES_MAX }));
}

#[test]
fn what_a_template_makes_is_bounded() {
    for source in [
        "{% set ns = namespace(t='a') %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% set ns = namespace(l={}) %}{% for i in range(99999) %}{% set ns.l = {'a': ns.l} %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}{{ ns.a ~ '' }}",
        "{% for i in range(99) %}{% set x = 'a' * 8000000 %}{% endfor %}",
        "{% set x = 'a' * 100000000 %}",
        "{{ ([1] * 100000000) | list }}",
        "{{ ([1] * 100000000) | sort }}",
        "{{ (['a' * 100000] * 100000) | join }}",
        "{{ ', '.join(['a' * 100000] * 100000) }}",
        "{{ ['a' * 8000000, 'a' * 8000000] | string }}",
        "{{ ['a' * 8000000, 'a' * 8000000] | tojson }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
        "{{ ('a\n' * 1000) | indent(60000) }}",
        "{{ 'a' | indent(1000000000) }}",
        "{{ 'a' | indent(width=1000000000) }}",
        "{{ [1] | batch(1000000000, 1) }}",
        "{{ [1] | slice(1000000000, 1) }}",
        "{{ [1] | slice(10000000000000000000, 1) }}", // more than 64 bits with a sign hold
        "{{ [1] | slice(1e18, 1) }}",
        "{{ [1] | batch(99999999999999999999999999, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%*d' | format(1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%(\u{e9})s' | format(1) }}",
        "{{ '%(a\u{e9}' | format(1) }}",
        "{{ '{[\u{e9}]}'.format(1) }}",
        "{{ '{\u{e9}}'.format(1) }}",
        "{{ '{a\u{e9}'.format(1) }}",
        "{{ '%\u{e9}' | format(1) }}",
        "{{ 5 is divisibleby(0) }}",
        "{{ ''[::-1] }}",
        "{% set a = [range(4000) | list] %}{% for i in range(9000) %}{% for j in range(20) %}{% set x = a %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(20000) %}{% set ns.l = ns.l | chain([], (1,)) %}{% endfor %}",
        "{% set x %}{% for i in range(9999) %}{{ 'a' * 8000000 }}{% endfor %}{% endset %}",
    ] {
        assert!(matches!(template(source).render(&hello()), Err(TemplateError::Broken(_))), "{source}");
    }
    for (source, rendered) in [
        ("{% set ns = namespace(t='') %}{% for i in range(3) %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.t }}", "012"),
        ("{% set a, b = 1, 2 %}{% set c = 3, %}{{ a }}{{ b }}{{ c | length }}", "121"),
        ("{% set x = no.such if false %}{{ x is defined }}{% set x %}{{ 1 }}={% endset %}{{ x }}", "False1="),
        ("{% set x | replace('a', 'b') %}a={% endset %}{{ x }}", "b="),
        ("{{ '20240101 %5.1f%%' | format(1) }}{{ '{0:>3}'.format('a') }}", "20240101   1.0%  a"),
        (
            "{% set ns = namespace(d={}) %}{% for i in range(20000) %}{% set ns.d = ns.d | chain({}) %}{% endfor %}x",
            "x",
        ),
        ("{% set d = {'a': 1, 'b': 2} | chain({'b': 3}) %}{{ d.a }}{{ d['b'] }}{{ d | length }}", "132"),
        (
            "{{ 6 is divisibleby(3) }}{{ 6 is divisibleby(4) }}{{ 6.0 is divisibleby(1.5) }}{{ 'a' is divisibleby(2) }}{{ 1.5 is divisibleby(0.0) }}",
            "TrueFalseTrueFalseFalse",
        ),
        ("{{ '{\"\u{e9}\": \"%s\", {\u{e9}' | format(1) }}", "{\"\u{e9}\": \"1\", {\u{e9}"),
        ("{{ '%(\u{e9})s {}'.format(1) }}", "%(\u{e9})s 1"),
        ("{% set l = [1] | chain([2, 3], 'ab') %}{{ l | length }}{{ l | list | last }}", "5b"),
        ("{% set f = namespace(n=1) %}{% set g = [f] %}{{ g[0].n }}", "1"),
    ] {
        assert_eq!(template(source).render(&hello()).as_deref(), Ok(rendered), "{source}");
    }
}

#[test]
fn a_template_too_deep_for_the_stack_is_refused_when_opened() {
    let chains = ["not ", "-", "1 + ", "1 ** ", "1 or ", "a.", "1 if 1 else ", "1 | string ~ ", "1 is ", "[[1], "];
    let deep = chains.map(|link| format!("{{{{ {}1 }}}}", link.repeat(100_000)));
    let elifs = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(100_000));
    for source in deep.into_iter().chain([elifs]) {
        let opened = ChatTemplate::from_sources(BTreeMap::from([("default".to_owned(), source.clone())]), Map::new());
        assert!(matches!(opened, Err(TemplateError::Invalid { .. })), "{}", &source[..40]);
    }
    let long = format!("{{{{ [{}1] | length }}}}", "1, ".repeat(100_000));
    assert_eq!(template(&long).render(&hello()).as_deref(), Ok("100001"));
    template(&format!("{{{{ {}1 }}}}", "-".repeat(1900)));
}

#[test]
fn malformed_chats_are_the_clients_fault() {
    let shows = template("{% for m in messages %}{{ m.role.upper() ~ m.content.strip() }}{% endfor %}");
    let input = |param, reason: &str| Err(TemplateError::Input { param, reason: reason.into() });
    assert_eq!(shows.render(&chat(json!([]))), input("messages", "must have at least one message"));
    assert_eq!(
        shows.render(&chat(json!([{"role": "user", "content": "x"}, "x"]))),
        input("messages", "number 1 is no object")
    );
    for message in [json!({}), json!({"role": 5, "content": "x"}), json!({"role": "user", "content": {"a": 1}})] {
        assert!(matches!(shows.render(&chat(json!([message]))), Err(TemplateError::Failed(_))), "{message}");
    }
    let kwargs = Map::from_iter([("messages".to_owned(), json!([]))]);
    assert!(matches!(
        shows.render(&ChatInput { kwargs, ..hello() }),
        Err(TemplateError::Input { param: "chat_template_kwargs", .. })
    ));
}

#[test]
fn a_template_is_chosen_by_name_or_by_tools() {
    let sources = [("default", "plain"), ("tool_use", "tools"), ("rag", "rag")];
    let sources = sources.map(|(name, source)| (name.to_owned(), source.to_owned()));
    let templates = ChatTemplate::from_sources(BTreeMap::from(sources), Map::new()).expect("parses");
    let render = |tools: Option<Vec<Value>>, template: Option<&str>| {
        templates.render(&ChatInput { tools, template: template.map(str::to_owned), ..hello() })
    };
    assert_eq!(render(None, None).as_deref(), Ok("plain"));
    assert_eq!(render(Some(vec![]), None).as_deref(), Ok("tools"));
    assert_eq!(render(Some(vec![]), Some("rag")).as_deref(), Ok("rag"));
    let unknown = TemplateError::UnknownName { name: "x".into(), known: "default, rag, tool_use".into() };
    assert_eq!(render(None, Some("x")), Err(unknown));
}

#[test]
fn a_wish_for_length_reaches_a_template_that_looks_at_it_and_no_other() {
    let asks = |template: &ChatTemplate, verbosity: Option<&str>, kwargs| {
        template
            .render(&ChatInput { verbosity: verbosity.map(str::to_owned), kwargs, ..hello() })
            .map_err(|error| error.to_string())
    };
    let none = Map::new;
    for source in [
        "{{ verbosity }}",
        "{% if verbosity is defined %}{{ verbosity }}{% endif %}",
        "{% set verbosity = verbosity | default('medium') %}{{ verbosity }}",
        "{% macro say() %}{{ verbosity }}{% endmacro %}{{ say() }}",
    ] {
        let knows = template(source);
        for word in ["low", "medium", "high"] {
            assert_eq!(asks(&knows, Some(word), none()).as_deref(), Ok(word), "{source}");
        }
        let own = Map::from_iter([(VERBOSITY.to_owned(), "own".into())]);
        assert_eq!(asks(&knows, Some("low"), own).as_deref(), Ok("own"), "{source}");
    }
    for source in ["{{ messages[0].content }}", "{{ messages[0].verbosity }}{# verbosity #}", "{{ 'verbosity' }}"] {
        let ignorant = template(source);
        assert_eq!(asks(&ignorant, Some("medium"), none()), asks(&ignorant, None, none()), "{source}");
        let refused = asks(&ignorant, Some("low"), none()).expect_err(source);
        assert!(refused.contains("`verbosity`: is \"low\"") && refused.contains("allowed: \"medium\""), "{refused}");
    }
}

/// Of a chat with these wishes: the parameter that is refused, if one is.
fn refused_wish(template: &ChatTemplate, wishes: Wishes, change: fn(&mut ChatInput)) -> Option<&'static str> {
    let mut input = ChatInput { wishes, ..hello() };
    change(&mut input);
    match template.render(&input) {
        Ok(_) => None,
        Err(TemplateError::Input { param, .. }) => Some(param),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_wish_that_a_template_knows_nothing_of_is_refused() {
    let effort = || Wishes { effort: Some("high".into()), ..Wishes::default() };
    let thoughts = || Wishes { thoughts: true, ..Wishes::default() };
    let documents = || Wishes { documents: true, ..Wishes::default() };
    let as_it_is = |_: &mut ChatInput| ();
    let ignorant = template("{{ messages[0].content }}{{ messages[0].thinking }}{# reasoning_effort documents #}");
    for (wishes, param) in [(effort(), "reasoning_effort"), (thoughts(), "thinking"), (documents(), "documents")] {
        assert_eq!(refused_wish(&ignorant, wishes, as_it_is), Some(param));
    }
    assert_eq!(refused_wish(&ignorant, Wishes::default(), as_it_is), None);
    for source in [
        "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}{{ reasoning_effort }}",
        "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}",
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}",
    ] {
        assert_eq!(refused_wish(&template(source), effort(), as_it_is), None, "{source}");
        assert_eq!(refused_wish(&template(source), thoughts(), as_it_is), None, "{source}");
        assert_eq!(refused_wish(&template(source), documents(), as_it_is), Some("documents"), "{source}");
    }
    let shows = template("{% for document in documents %}{{ document.text }}{% endfor %}");
    let with_one = |input: &mut ChatInput| input.documents = Some(json!([{"text": "paper"}]));
    assert_eq!(refused_wish(&shows, documents(), with_one), None);
}

#[test]
fn a_template_knows_what_it_looks_at_for_other_chats() {
    let effort = Wishes { effort: Some("low".into()), ..Wishes::default() };
    let where_answers_begin = template("{% if add_generation_prompt %}{{ enable_thinking }}{% endif %}");
    let continued = |input: &mut ChatInput| input.add_generation_prompt = false;
    assert_eq!(refused_wish(&where_answers_begin, effort.clone(), continued), None);
    let with_tools = template("{% if tools %}{{ reasoning_effort }}{% endif %}");
    assert_eq!(refused_wish(&with_tools, effort.clone(), |_| ()), Some("reasoning_effort"));
    assert_eq!(refused_wish(&with_tools, effort, |input| input.tools = Some(vec![json!({})])), None);
}

#[test]
fn messages_of_the_openai_api_are_brought_into_the_templates_form() {
    let strings = template("{% for m in messages %}{{ m.content }}{% endfor %}");
    let parts = template("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}");
    let content = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let message = json!({"role": "user", "content": content});
    assert_eq!(strings.adapt(vec![message.clone()]), [json!({"role": "user", "content": "a\nb"})]);
    assert_eq!(parts.adapt(vec![message.clone()]), [message]);

    let chat = |content: Value| ChatInput { messages: vec![json!({"role": "user", "content": content})], ..hello() };
    assert_eq!(parts.render(&chat(content)).as_deref(), Ok("ab"));
    assert_eq!(parts.render(&chat(json!("alone"))).as_deref(), Ok("alone"), "a text alone is not lost");
    let typed = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
    assert_eq!(template(typed).render(&chat(json!("alone"))).as_deref(), Ok("alone"));
    let either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}!{% else %}{{ m.content[0].text }}{% endif %}{% endfor %}";
    assert_eq!(
        template(either).render(&chat(json!("alone"))).as_deref(),
        Ok("alone!"),
        "as it is where both are known"
    );

    let image = json!({"role": "user", "content": [{"type": "image_url"}]});
    assert_eq!(strings.adapt(vec![image.clone()]), [image], "nothing is dropped in silence");

    let call = |arguments: Value| json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
    assert_eq!(strings.adapt(vec![call(json!("{\"a\": 1}"))]), [call(json!({"a": 1}))]);
    assert_eq!(strings.adapt(vec![call(json!(" "))]), [call(json!({}))]);
    for cut in ["{\"a\": ", "[1]", "no json"] {
        assert_eq!(strings.adapt(vec![call(json!(cut))]), [call(json!({ "INVALID_JSON": cut }))]);
    }
    for other in [json!({"a": 1}), json!(5)] {
        assert_eq!(strings.adapt(vec![call(other.clone())]), [call(other)]);
    }
    for odd in [
        json!(5),
        json!({"tool_calls": 1, "content": [1]}),
        json!({"tool_calls": [1, {"function": []}], "content": [{}]}),
    ] {
        assert_eq!(strings.adapt(vec![odd.clone()]), [odd]);
    }
}

#[test]
fn an_answer_of_calls_alone_has_content_only_for_templates_that_print_it_unasked() {
    let call =
        json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]});
    let told = |source: &str| template(source).render(&chat(json!([{"role": "user", "content": "x"}, call])));
    let asks =
        "{% for m in messages %}[{% if m.content is defined %}{{ m.content }}{% else %}none{% endif %}]{% endfor %}";
    assert_eq!(told(asks).as_deref(), Ok("[x][none]"));
    let adds = "{% for m in messages %}{{ '[' + m.content + ']' }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}";
    assert_eq!(told(adds).as_deref(), Ok("[x][]f"));
    let forgets = "{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}";
    assert!(matches!(told(forgets), Err(TemplateError::Failed(_))), "a call is not left out in silence");
    let prints_tools = "{{ tools }}{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}";
    let tools = Some(vec![json!({"type": "function", "function": {"name": "f"}})]);
    let offered = ChatInput { tools, ..chat(json!([{"role": "user", "content": "x"}, call])) };
    let left_out = template(prints_tools).render(&offered);
    assert!(matches!(left_out, Err(TemplateError::Failed(_))), "its name is there, but not that it was called");
    assert!(template(&format!("{{{{ tools }}}}{adds}")).render(&offered).is_ok());
    // One that fails anyway says why it failed at first.
    let fails = "{% for m in messages %}{% if m.tool_calls %}{{ m.content.a.b }}{% endif %}{% endfor %}";
    assert!(matches!(told(fails), Err(TemplateError::Failed(_))));
}

#[test]
fn arguments_are_texts_for_templates_that_put_texts_together() {
    // As DeepSeek's: calls are told where the content is null, by concatenation.
    let deepseek = "{% for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}{% for c in m['tool_calls'] %}\
        {{ '<' + c['function']['name'] + c['function']['arguments'] + '>' }}{% endfor %}\
        {% elif m.role == 'assistant' %}{{ m['content'].split('x')[-1] }}{% else %}{{ '[' + m['content'] + ']' }}{% endif %}{% endfor %}";
    let told = |source: &str, content: Value| {
        let call = json!({"role": "assistant", "content": content, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Zürich\", \"days\":[1,2.50]}"}}]});
        let template = template(source);
        let messages = template.adapt(vec![json!({"role": "user", "content": "hi"}), call]);
        template.render(&ChatInput { messages, ..ChatInput::default() })
    };
    let expected = Ok(r#"[hi]<f{"city": "Zürich", "days": [1, 2.5]}>"#);
    assert_eq!(told(deepseek, Value::Null).as_deref(), expected);
    assert_eq!(told(deepseek, json!("")).as_deref(), expected, "a call is not left out in silence");
    let beside = "{% for m in messages %}{{ '[' + m.content + ']' }}{% for c in m.tool_calls %}\
        {{ '<' + c.function.name + c.function.arguments + '>' }}{% endfor %}{% endfor %}";
    let args = r#"<f{"city": "Zürich", "days": [1, 2.5]}>"#;
    assert_eq!(told(beside, json!("so")), Ok(format!("[hi][so]{args}")));
    assert_eq!(told(beside, Value::Null), Ok(format!("[hi][]{args}")));
}

#[test]
fn time_is_an_argument() {
    // 2024-02-29 23:30:05 UTC
    let at = |utc_offset_seconds| LocalTime { unix_seconds: 1_709_249_405, utc_offset_seconds };
    let render = |now| template("{{ strftime_now('%d %b %Y %H:%M') }}").render(&ChatInput { now, ..hello() });
    assert_eq!(render(at(0)).as_deref(), Ok("29 Feb 2024 23:30"));
    assert_eq!(render(at(3600)).as_deref(), Ok("01 Mar 2024 00:30"));
    assert_eq!(render(at(-12 * 3600)).as_deref(), Ok("29 Feb 2024 11:30"));
    for unix_seconds in [i64::MIN, -1, i64::MAX] {
        LocalTime { unix_seconds, utc_offset_seconds: 1 }.strftime("%c %G-%V %j %s %s%");
    }
}
