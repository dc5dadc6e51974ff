//! `strftime_now`: a moment, formatted as C's `strftime` does in the C locale.
//!
//! The moment is an argument of rendering, never read from a clock, so that the same request gives the same prompt.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// A moment and what clocks on the wall show: seconds since 1970 in UTC, and how far ahead of UTC local time is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalTime {
    /// Since 1970-01-01 00:00:00 UTC.
    pub unix_seconds: i64,
    /// East is positive.
    pub utc_offset_seconds: i32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_SECONDS: i64 = 86_400;

/// A moment, taken apart.
struct Parts {
    year: i64,
    month: usize, // from 0
    day: i64,
    weekday: usize, // Sunday is 0
    yearday: i64,   // from 0
    hour: i64,
    minute: i64,
    second: i64,
}

impl LocalTime {
    /// Follows `format`; what is no directive stays as it is.
    pub fn strftime(&self, format: &str) -> String {
        let mut text = String::with_capacity(format.len() * 2);
        self.write(&self.parts(), format, &mut text);
        text
    }

    fn parts(&self) -> Parts {
        let local = self.unix_seconds.saturating_add(self.utc_offset_seconds.into());
        let (days, seconds) = (local.div_euclid(DAY_SECONDS), local.rem_euclid(DAY_SECONDS));
        let (year, month, day) = civil(days);
        let yearday = days - days_before_year(year);
        let weekday = (days + 4).rem_euclid(7) as usize; // 1970 began on a Thursday
        Parts {
            year,
            month,
            day,
            weekday,
            yearday,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn write(&self, at: &Parts, format: &str, text: &mut String) {
        let mut rest = format;
        while let Some(percent) = rest.find('%') {
            text.push_str(&rest[..percent]);
            let from = &rest[percent + 1..];
            let flags = from.len() - from.trim_start_matches(['-', '_', '0', '^']).len();
            let Some(directive) = from[flags..].chars().next() else {
                rest = &rest[percent..]; // a percent sign at the end
                break;
            };
            let end = flags + directive.len_utf8();
            if !self.directive(at, &from[..flags], directive, text) {
                text.push('%');
                text.push_str(&from[..end]);
            }
            rest = &from[end..];
        }
        text.push_str(rest);
    }

    /// Writes one directive; false if there is no such one.
    fn directive(&self, at: &Parts, flags: &str, directive: char, text: &mut String) -> bool {
        let hour12 = (at.hour + 11) % 12 + 1;
        let (iso_year, iso_week) = iso_week(at);
        let monday_based = (at.weekday + 6) % 7;
        let composite = match directive {
            'c' => "%a %b %e %H:%M:%S %Y",
            'D' | 'x' => "%m/%d/%y",
            'F' => "%Y-%m-%d",
            'R' => "%H:%M",
            'r' => "%I:%M:%S %p",
            'T' | 'X' => "%H:%M:%S",
            _ => "",
        };
        if !composite.is_empty() {
            self.write(at, composite, text);
            return true;
        }
        let word = match directive {
            'A' => DAYS[at.weekday],
            'a' => &DAYS[at.weekday][..3],
            'B' => MONTHS[at.month],
            'b' | 'h' => &MONTHS[at.month][..3],
            'p' if at.hour < 12 => "AM",
            'p' => "PM",
            'P' if at.hour < 12 => "am",
            'P' => "pm",
            'n' => "\n",
            't' => "\t",
            '%' => "%",
            'z' | 'Z' => return true, // Python's `datetime.now()` knows no zone
            _ => "",
        };
        if !word.is_empty() {
            if flags.contains('^') {
                text.push_str(&word.to_uppercase())
            } else {
                text.push_str(word)
            }
            return true;
        }
        let (number, width, fill) = match directive {
            'C' => (at.year.div_euclid(100), 2, '0'),
            'd' => (at.day, 2, '0'),
            'e' => (at.day, 2, ' '),
            'f' => (0, 6, '0'),
            'G' => (iso_year, 4, '0'),
            'g' => (iso_year.rem_euclid(100), 2, '0'),
            'H' => (at.hour, 2, '0'),
            'I' => (hour12, 2, '0'),
            'j' => (at.yearday + 1, 3, '0'),
            'k' => (at.hour, 2, ' '),
            'l' => (hour12, 2, ' '),
            'M' => (at.minute, 2, '0'),
            'm' => (at.month as i64 + 1, 2, '0'),
            'S' => (at.second, 2, '0'),
            's' => (self.unix_seconds, 1, '0'),
            'U' => ((at.yearday + 7 - at.weekday as i64) / 7, 2, '0'),
            'u' => (monday_based as i64 + 1, 1, '0'),
            'V' => (iso_week, 2, '0'),
            'W' => ((at.yearday + 7 - monday_based as i64) / 7, 2, '0'),
            'w' => (at.weekday as i64, 1, '0'),
            'Y' => (at.year, 1, '0'),
            'y' => (at.year.rem_euclid(100), 2, '0'),
            _ => return false,
        };
        let written = match flags.chars().rfind(|flag| *flag != '^').unwrap_or(fill) {
            '-' => write!(text, "{number}"),
            '0' => write!(text, "{number:0width$}"),
            _ => write!(text, "{number:width$}"),
        };
        written.expect("writing to a String does not fail");
        true
    }
}

/// The week that most of whose days are in the year, and the year that the week belongs to (ISO 8601).
fn iso_week(at: &Parts) -> (i64, i64) {
    let monday_based = (at.weekday as i64 + 6) % 7;
    let week = (at.yearday - monday_based + 10) / 7;
    let weeks_in = |year: i64| {
        let first = (days_before_year(year) + 3).rem_euclid(7); // Monday is 0
        let is_leap = days_before_year(year + 1) - days_before_year(year) == 366;
        if first == 3 || (first == 2 && is_leap) { 53 } else { 52 }
    };
    match week {
        0 => (at.year - 1, weeks_in(at.year - 1)),
        week if week > weeks_in(at.year) => (at.year + 1, 1),
        week => (at.year, week),
    }
}

/// Days from 1970-01-01 to the first of January.
fn days_before_year(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

/// Year, month from 0, and day of the month of a day since 1970-01-01. After Howard Hinnant, "chrono-compatible
/// low-level date algorithms": years begin in March, so that the leap day is the last.
fn civil(days: i64) -> (i64, usize, i64) {
    let days = days + 719_468; // since 0000-03-01
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = year_of_era + era * 400 + i64::from(month < 2);
    (year, month as usize, day)
}
