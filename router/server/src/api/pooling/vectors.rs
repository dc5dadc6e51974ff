//! What becomes of the numbers that a model gives: lengths, cuts, probabilities.
//!
//! Sums are in 64 bits, so that a vector of thousands of numbers has length 1 as far as 32 bits can tell.

use pelton_engine::Activation;

/// An embedding: its first `dimensions` numbers, of length 1 if `is_normal`.
pub(super) fn embedding(vector: &[f32], dimensions: Option<usize>, is_normal: bool) -> Vec<f32> {
    let vector = &vector[..dimensions.unwrap_or(vector.len()).min(vector.len())];
    if is_normal { normalized(vector) } else { vector.to_vec() }
}

/// The same direction, of length 1. What has no direction stays as it is.
fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = dot(vector, vector).sqrt();
    if length == 0.0 {
        return vector.to_vec();
    }
    vector.iter().map(|&number| (f64::from(number) / length) as f32).collect()
}

/// How alike two directions are: -1 to 1. What has no direction is like nothing.
pub(super) fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let lengths = dot(one, one).sqrt() * dot(other, other).sqrt();
    if lengths == 0.0 { 0.0 } else { (dot(one, other) / lengths).clamp(-1.0, 1.0) }
}

fn dot(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(&one, &other)| f64::from(one) * f64::from(other)).sum()
}

/// Probabilities of classes. With a single one, whose softmax would always be 1, it is the sigmoid.
pub(super) fn activated(logits: &[f32], activation: Activation) -> Vec<f32> {
    match activation {
        Activation::None => logits.to_vec(),
        Activation::Softmax if logits.len() > 1 => softmax(logits),
        Activation::Softmax | Activation::Sigmoid => logits.iter().map(|&logit| sigmoid(logit)).collect(),
    }
}

fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_is_cut_first_and_then_normalised() {
        let vector = [3.0, 4.0, 12.0];
        assert_eq!(embedding(&vector, None, false), vector);
        assert_eq!(embedding(&vector, Some(2), false), [3.0, 4.0]);
        assert_eq!(embedding(&vector, Some(2), true), [0.6, 0.8]);
        assert_eq!(embedding(&[0.0, 0.0], None, true), [0.0, 0.0]);
        let long: Vec<f32> = (0..4096).map(|at| (at as f32).sin() * 1e18).collect();
        assert!((dot(&embedding(&long, None, true), &embedding(&long, None, true)) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn directions_are_compared_and_lengths_are_not() {
        for (one, other, expected) in [
            ([1.0, 0.0], [5.0, 0.0], 1.0),
            ([1.0, 0.0], [0.0, 2.0], 0.0),
            ([1.0, 1.0], [-3.0, -3.0], -1.0),
            ([0.0, 0.0], [1.0, 0.0], 0.0),
        ] {
            assert!((cosine(&one, &other) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn probabilities_are_the_models_kind() {
        let close = |got: Vec<f32>, expected: &[f32]| got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(activated(&[0.0, 3.0_f32.ln()], Activation::Softmax), &[0.25, 0.75]));
        assert!(close(activated(&[1000.0, 1000.0], Activation::Softmax), &[0.5, 0.5]));
        assert!(close(activated(&[0.0, 3.0_f32.ln()], Activation::Sigmoid), &[0.5, 0.75]));
        assert!(close(activated(&[3.0_f32.ln()], Activation::Softmax), &[0.75]));
        assert_eq!(activated(&[-1000.0, 5.0], Activation::None), [-1000.0, 5.0]);
        assert_eq!(activated(&[-1000.0], Activation::Sigmoid), [0.0]);
    }
}
