//! Makes of a Hugging Face template one that minijinja parses to the same meaning.
//!
//! * `{% generation %}` ... `{% endgeneration %}` marks what the model says, for training. It is a tag of
//!   `transformers`' own, with a scope, and prints what is in it: just what `{% with %}` does.
//! * Line ends become `\n`, as Jinja does before anything else.

/// The template for minijinja.
pub(super) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut is_raw = false;
    while let Some(at) = rest.find('{') {
        let (text, from) = rest.split_at(at);
        rewritten.push_str(text);
        let (part, after) = match from.as_bytes().get(1) {
            Some(b'%') => tag(from),
            Some(b'#') if !is_raw => to_end(from, "#}"),
            Some(b'{') if !is_raw => expression(from, "}}"),
            _ => from.split_at(1),
        };
        let name = tag_name(part);
        match name {
            Some("raw") if !is_raw => is_raw = true,
            Some("endraw") => is_raw = false,
            _ => {}
        }
        match name {
            // In raw text nothing is a tag but `endraw`; so go on right after its brace.
            Some("endraw") => rewritten.push_str(part),
            _ if is_raw && name != Some("raw") => {
                rewritten.push('{');
                rest = &from[1..];
                continue;
            }
            Some("generation") => rewritten.push_str(&part.replacen("generation", "with", 1)),
            Some("endgeneration") => rewritten.push_str(&part.replacen("endgeneration", "endwith", 1)),
            _ => rewritten.push_str(part),
        }
        rest = after;
    }
    rewritten.push_str(rest);
    rewritten
}

/// `{% ... %}`, and what is after it.
fn tag(from: &str) -> (&str, &str) {
    expression(from, "%}")
}

/// From an opening brace to `end`, where strings may hold anything.
fn expression<'a>(from: &'a str, end: &str) -> (&'a str, &'a str) {
    let mut quote = None;
    let mut is_escaped = false;
    for (at, c) in from.char_indices().skip(2) {
        match quote {
            _ if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if from[at..].starts_with(end) => return from.split_at(at + end.len()),
            None => {}
        }
    }
    (from, "")
}

fn to_end<'a>(from: &'a str, end: &str) -> (&'a str, &'a str) {
    from.find(end).map_or((from, ""), |at| from.split_at(at + end.len()))
}

/// The first word of a tag that ends after it, but for white space and a sign: `{%- generation -%}`.
fn tag_name(part: &str) -> Option<&str> {
    let inner = part.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    let name = inner.trim();
    (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::for_minijinja;

    #[track_caller]
    fn check(source: &str, rewritten: &str) {
        assert_eq!(for_minijinja(source), rewritten);
    }

    #[test]
    fn generation_tags_become_scopes() {
        check("a{% generation %}b{% endgeneration %}c", "a{% with %}b{% endwith %}c");
        check("{%- generation -%}{{ x }}{%-endgeneration+%}", "{%- with -%}{{ x }}{%-endwith+%}");
        check("{%\ngeneration\n%}\r\n", "{%\nwith\n%}\n");
    }

    #[test]
    fn all_else_stays() {
        for source in [
            "",
            "{",
            "{{",
            "{%",
            "{#",
            "{{ '",
            "{% generation",
            "generation",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{{ ' {% endraw %}{{ '{% generation %}' }}",
            "{{ \"%}\\\"{% generation %}\" }}",
            "{% set generation = 1 %}{{ generation }}",
            "{% if generation %}{% endif %}",
        ] {
            check(source, source);
        }
    }

    #[test]
    fn raw_text_ends_where_it_says() {
        check("{% raw %}{{ ' {% endraw %}{% generation %}", "{% raw %}{{ ' {% endraw %}{% with %}");
        check("{%- raw -%}{% x '{%- endraw -%}{% generation %}", "{%- raw -%}{% x '{%- endraw -%}{% with %}");
    }
}
