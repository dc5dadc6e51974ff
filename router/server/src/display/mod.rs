//! What people see of Pelton in a terminal: numbers with units, progress, the start-up table.
//!
//! Knows how things look. Never here: what is true; everything shown is handed in as a plain value.

mod progress;
mod table;

pub(crate) use progress::Progress;
pub(crate) use table::{Start, started};

/// Bytes for people: `512 MiB`, `1.50 GiB`. Three digits, binary units.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A count for people: `1,234,567`.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        for (got, expected) in [
            (bytes(0), "0 B"),
            (bytes(1023), "1023 B"),
            (bytes(1024), "1.00 KiB"),
            (bytes(12 << 20), "12.0 MiB"),
            (bytes(999 << 30), "999 GiB"),
            (count(0), "0"),
            (count(999), "999"),
            (count(1_234_567), "1,234,567"),
        ] {
            assert_eq!(got, expected);
        }
    }
}
