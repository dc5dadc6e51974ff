//! The one way an op refuses its arguments, before anything has been written.

/// An argument whose contents lie outside what the shapes allow. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{argument}` {got}; allowed: {allowed}")]
pub struct Refusal {
    /// The argument as the Python door names it.
    pub argument: &'static str,
    /// What was found, as the rest of a sentence: "is 7 at index 3".
    pub got: String,
    /// What would have been taken.
    pub allowed: String,
}

/// Checks that every value is in `0..limit`.
pub(crate) fn check_indices<I: Copy + Into<i64>>(
    argument: &'static str,
    values: &[I],
    limit: usize,
) -> Result<(), Refusal> {
    match values.iter().position(|&value| !(0..limit as i64).contains(&value.into())) {
        None => Ok(()),
        Some(at) => Err(Refusal {
            argument,
            got: format!("is {} at index {at}", values[at].into()),
            allowed: format!("0 to {}", limit as i64 - 1),
        }),
    }
}

/// Checks that no value comes twice: two threads would write one place.
pub(crate) fn check_distinct(argument: &'static str, values: &[i32]) -> Result<(), Refusal> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Refusal { argument, got: format!("is {} twice", pair[0]), allowed: "each once".to_owned() }),
    }
}

/// Checks that rows follow each other from 0 to the number of tokens.
pub(crate) fn check_offsets(offsets: &[i32], tokens: usize) -> Result<(), Refusal> {
    let refuse = |got, allowed| Err(Refusal { argument: "row_offsets", got, allowed });
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return refuse("is empty".to_owned(), "one value more than there are rows".to_owned());
    };
    if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return refuse(format!("falls after index {at}"), "values that do not fall".to_owned());
    }
    if first != 0 || last as usize != tokens {
        return refuse(format!("goes from {first} to {last}"), format!("0 to the number of tokens, {tokens}"));
    }
    Ok(())
}
