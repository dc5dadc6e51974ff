//! "Did you mean ...": the known name nearest to one that nobody knows.

/// The name with the fewest edits from `got`, if it is near enough to be what was meant:
/// at most a third of its letters differ. Ties go to the first.
pub(crate) fn nearest<'a>(got: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let got = got.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&got, &name.to_lowercase()), name))
        .filter(|(edits, name)| *edits <= 1.max(name.len().max(got.len()) / 3))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood_and_another_word_is_not() {
        let known = ["host", "port", "max-model-len", "max-running"];
        for (got, expected) in [
            ("prot", Some("port")),
            ("Host", Some("host")),
            ("max-model-length", Some("max-model-len")),
            ("max_model_len", Some("max-model-len")),
            ("tensor-parallel-size", None),
            ("x", None),
        ] {
            assert_eq!(nearest(got, known), expected, "{got}");
        }
    }
}
