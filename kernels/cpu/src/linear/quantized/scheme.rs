//! How a weight is quantised and what it is multiplied with: the part of an arithmetic that a name stands for.

use std::fmt;

/// Bits of one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bits {
    /// Codes 0 to 15.
    Four,
    /// Codes 0 to 255.
    Eight,
}

impl Bits {
    /// The code that stands for 0 where a weight brings no zero points.
    pub fn zero(self) -> i32 {
        match self {
            Self::Four => 8,
            Self::Eight => 128,
        }
    }
}

/// What the codes are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Integers of 8 bits, rounded anew in each call with a scale for each row and group: sums within a group are exact.
    Int8,
    /// The activations as they are.
    Float,
}

/// One way to hold a weight and to multiply it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Of one weight.
    pub bits: Bits,
    /// How many neighbours along K share a scale, a multiple of 8; none: a whole column.
    pub group: Option<usize>,
    /// What they meet.
    pub activations: Activations,
}

/// As a numerics id has it: `int8`, `int4-g64-a16`.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.bits {
            Bits::Four => "int4",
            Bits::Eight => "int8",
        })?;
        if let Some(group) = self.group {
            write!(f, "-g{group}")?;
        }
        f.write_str(match self.activations {
            Activations::Int8 => "",
            Activations::Float => "-a16",
        })
    }
}
