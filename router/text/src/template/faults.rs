//! What is wrong with a template, in our own words: where, and what of it.

use minijinja::{Error, ErrorKind};

/// The innermost error: what led to it says nothing more.
pub(super) fn describe(error: &Error) -> String {
    let mut inner = error;
    while let Some(source) = std::error::Error::source(inner).and_then(|source| source.downcast_ref()) {
        inner = source;
    }
    let what = match inner.kind() {
        ErrorKind::SyntaxError => "this is no Jinja".to_owned(),
        ErrorKind::UndefinedError => "a value is used that is not there".to_owned(),
        ErrorKind::UnknownFilter => named("filter", inner),
        ErrorKind::UnknownTest => named("test", inner),
        ErrorKind::UnknownFunction => named("function", inner),
        ErrorKind::UnknownMethod => "a value has no such method".to_owned(),
        ErrorKind::TemplateNotFound | ErrorKind::BadInclude => {
            "it asks for another template, and there is none".to_owned()
        }
        ErrorKind::TooManyArguments | ErrorKind::MissingArgument => {
            "something is called with too many arguments, or too few".to_owned()
        }
        ErrorKind::CannotUnpack => "a list has another number of items than names are given for".to_owned(),
        ErrorKind::InvalidOperation | ErrorKind::NonPrimitive | ErrorKind::NonKey => {
            "a value is of a type, or of a size, that this cannot be done with".to_owned()
        }
        ErrorKind::BadSerialization | ErrorKind::CannotDeserialize => "a value cannot be written as JSON".to_owned(),
        _ => "this cannot be done".to_owned(),
    };
    match inner.line().or_else(|| error.line()) {
        Some(line) => format!("line {line} of the template: {what}"),
        None => what,
    }
}

/// The library says `filter NAME is unknown`, or that without the first word.
fn named(what: &str, error: &Error) -> String {
    const NAME_MAX: usize = 60;
    let said = error.detail().and_then(|said| said.split_once(" is ")).map_or("", |(before, _)| before);
    let name = said.split_whitespace().last().unwrap_or_default();
    let name: String = name.chars().filter(|c| c.is_alphanumeric() || *c == '_').take(NAME_MAX).collect();
    if name.is_empty() { format!("there is no such {what}") } else { format!("there is no {what} `{name}`") }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::*;

    #[test]
    fn a_fault_has_its_place_and_our_words() {
        for (source, expected) in [
            ("a\n{% for m in %}", "line 2 of the template: this is no Jinja"),
            ("{{ 1 | nothing }}", "line 1 of the template: there is no filter `nothing`"),
            ("{{ 1 is nothing }}", "line 1 of the template: there is no test `nothing`"),
            ("\n\n{{ nothing(1) }}", "line 3 of the template: there is no function `nothing`"),
            ("{{ nothing.at.all }}", "line 1 of the template: a value is used that is not there"),
            (
                "{{ [] + 1 }}",
                "line 1 of the template: a value is of a type, or of a size, that this cannot be done with",
            ),
            ("{% include 'x' %}", "line 1 of the template: it asks for another template, and there is none"),
        ] {
            let environment = Environment::new();
            let error = environment.render_str(source, context!()).expect_err(source);
            assert_eq!(describe(&error), expected, "{source}: {error}");
        }
    }
}
