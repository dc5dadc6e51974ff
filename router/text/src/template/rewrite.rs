//! Makes of a Hugging Face template one that minijinja parses to the same meaning.
//!
//! * `{% generation %}` ... `{% endgeneration %}` marks what the model says, for training. It is a tag of
//!   `transformers`' own, with a scope, and prints what is in it: just what `{% with %}` does.
//! * Line ends become `\n`, as Jinja does before anything else.
//! * What `{% set %}` keeps goes through a function that knows how large it may be (`bounds`).

use super::bounds::{KEEP, KEEP_IN};
use super::levels::Levels;

/// The template for minijinja, or why it is none.
pub(super) fn for_minijinja(source: &str) -> Result<String, String> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut is_raw = false;
    let mut levels = Levels::default();
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
            None if part.len() > 1 && !part.starts_with("{#") => {
                levels.take(part)?;
                rewritten.push_str(kept(part).as_deref().unwrap_or(part));
            }
            Some("generation") => rewritten.push_str(&part.replacen("generation", "with", 1)),
            Some("endgeneration") => rewritten.push_str(&part.replacen("endgeneration", "endwith", 1)),
            _ => rewritten.push_str(part),
        }
        rest = after;
    }
    rewritten.push_str(rest);
    Ok(rewritten)
}

/// `{% set x = VALUE %}` as `{% set x = keep((VALUE)) %}`.
fn kept(part: &str) -> Option<String> {
    let (open, inner, close) = taken_apart(part)?;
    let after = inner.trim_start().strip_prefix("set").filter(|after| after.starts_with(char::is_whitespace))?;
    // A block that is captured may have a `=` within brackets: `{% set x | replace(count=1) %}`.
    let (target, value) = after.split_once('=').filter(|(target, _)| !target.contains('|'))?;
    let keep = if target.contains('.') { KEEP_IN } else { KEEP };
    (!value.trim().is_empty()).then(|| format!("{open} set{target}= {keep}(({value})) {close}"))
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
    let name = taken_apart(part)?.1.trim();
    (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic())).then_some(name)
}

/// A tag's beginning, what it says, and its end, white space signs included: `{%-`, ` x `, `%}`.
fn taken_apart(part: &str) -> Option<(&str, &str, &str)> {
    let inner = part.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    let begin = if part.starts_with("{%-") || part.starts_with("{%+") { 3 } else { 2 };
    Some((&part[..begin], inner, &part[begin + inner.len()..]))
}

#[cfg(test)]
mod tests {
    use super::for_minijinja;

    #[track_caller]
    fn check(source: &str, rewritten: &str) {
        assert_eq!(for_minijinja(source).as_deref(), Ok(rewritten));
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
            "{% set generation %}=={% endset %}{{ generation }}",
            "{% set x | replace('a', count=1) %}{% endset %}",
            "{% set x = %}",
            "{% setting = 1 %}",
            "{% if generation %}{% endif %}",
        ] {
            check(source, source);
        }
    }

    #[test]
    fn what_is_set_is_kept_within_bounds() {
        check("{% set x = 1 %}", "{% set x = __keep(( 1 )) %}");
        check("{%-set a, b = 1,\n2-%}", "{%- set a, b = __keep(( 1,\n2)) -%}");
        check("{%+ set ns.x = a == '=' %}", "{%+ set ns.x = __keep_in(( a == '=' )) %}");
    }

    #[test]
    fn raw_text_ends_where_it_says() {
        check("{% raw %}{{ ' {% endraw %}{% generation %}", "{% raw %}{{ ' {% endraw %}{% with %}");
        check("{%- raw -%}{% x '{%- endraw -%}{% generation %}", "{%- raw -%}{% x '{%- endraw -%}{% with %}");
    }
}
