//! What a model gives that gives vectors: the worker's claim, checked.

use pelton_rpc::v1;

/// The widest vector that a frame carries (`pelton_frame::Capacities`: `pooled_width`, `embed_width`).
pub(crate) const WIDTH_MAX: u32 = 1 << 16;

/// One vector per request, as the worker makes it: neither normalised, nor cut, nor activated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooling {
    /// Its numbers.
    pub width: u32,
    /// Whether all tokens of a request must be computed together, so that their KV serves nobody else.
    pub is_bidirectional: bool,
    /// What they are.
    pub gives: Gives,
}

/// What the numbers of a vector are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gives {
    /// A place in a space of meanings.
    Embedding {
        /// Whether the model wants it to have length 1.
        normalize: bool,
    },
    /// A number for each class.
    Classes {
        /// Their names, by index.
        labels: Vec<String>,
        /// What makes probabilities of the numbers.
        activation: Activation,
    },
}

/// What makes probabilities of the numbers of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// One class holds.
    Softmax,
    /// Each may hold.
    Sigmoid,
    /// Nothing: they are no probabilities.
    None,
}

impl Pooling {
    /// The claim, or what is wrong with it.
    pub(crate) fn check(claim: v1::Pooling) -> Result<Self, String> {
        let v1::Pooling { width, kind, normalize, is_bidirectional, labels, activation } = claim;
        if !(1..=WIDTH_MAX).contains(&width) {
            return Err(format!("the worker's `pooling.width` is {width}; allowed: 1 to {WIDTH_MAX}"));
        }
        let gives = match kind.as_str() {
            "embedding" => Gives::Embedding { normalize },
            "classes" => Gives::Classes { labels: names(labels, width)?, activation: known(&activation)? },
            _ => return Err(format!("the worker's `pooling.kind` is {kind:?}; allowed: embedding, classes")),
        };
        Ok(Self { width, is_bidirectional, gives })
    }
}

/// A name for each class, as `transformers` names those that the checkpoint does not.
fn names(labels: Vec<String>, width: u32) -> Result<Vec<String>, String> {
    match labels.len() {
        0 => Ok((0..width).map(|at| format!("LABEL_{at}")).collect()),
        named if named == width as usize => Ok(labels),
        named => Err(format!("the worker's `pooling.labels` are {named}; allowed: {width}, or none")),
    }
}

fn known(activation: &str) -> Result<Activation, String> {
    match activation {
        "softmax" => Ok(Activation::Softmax),
        "sigmoid" => Ok(Activation::Sigmoid),
        "none" | "" => Ok(Activation::None),
        _ => Err(format!("the worker's `pooling.activation` is {activation:?}; allowed: softmax, sigmoid, none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> v1::Pooling {
        v1::Pooling {
            width: 2,
            kind: "classes".to_owned(),
            normalize: true,
            is_bidirectional: true,
            labels: vec!["no".to_owned(), "yes".to_owned()],
            activation: "softmax".to_owned(),
        }
    }

    #[test]
    fn what_a_worker_claims_is_taken_or_refused_by_name() {
        let labels = vec!["no".to_owned(), "yes".to_owned()];
        let classes = |labels| Gives::Classes { labels, activation: Activation::Softmax };
        let all = |gives| Ok(Pooling { width: 2, is_bidirectional: true, gives });
        assert_eq!(Pooling::check(claim()), all(classes(labels)));
        let unnamed = v1::Pooling { labels: Vec::new(), ..claim() };
        assert_eq!(Pooling::check(unnamed), all(classes(vec!["LABEL_0".to_owned(), "LABEL_1".to_owned()])));
        let embedding = v1::Pooling { kind: "embedding".to_owned(), ..claim() };
        assert_eq!(Pooling::check(embedding), all(Gives::Embedding { normalize: true }));
        for (wrong, expected) in [
            (v1::Pooling { width: 0, ..claim() }, "`pooling.width` is 0; allowed: 1 to 65536"),
            (v1::Pooling { width: 65_537, ..claim() }, "`pooling.width` is 65537"),
            (v1::Pooling { width: 3, ..claim() }, "`pooling.labels` are 2; allowed: 3, or none"),
            (v1::Pooling { kind: "tokens".to_owned(), ..claim() }, "`pooling.kind` is \"tokens\""),
            (v1::Pooling { activation: "tanh".to_owned(), ..claim() }, "`pooling.activation` is \"tanh\""),
        ] {
            let refused = Pooling::check(wrong).expect_err("it is wrong");
            assert!(refused.contains(expected), "{refused}\nshould say: {expected}");
        }
    }
}
