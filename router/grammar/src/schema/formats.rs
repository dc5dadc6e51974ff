//! Formats of strings. Only those whose texts can be told by a grammar; a format is kept, and not a remark but for those of
//! Pydantic and OpenAPI that are nothing else.

/// How a format is kept.
pub(super) enum Format {
    /// By this pattern.
    Pattern(String),
    /// By the library.
    OfTheLibrary,
    /// Not at all: it says how a text is meant, and not which texts there are.
    Remark,
}

/// Names of formats that are served.
pub(super) const ALL: &str = "date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid, uri, json-pointer, \
                              relative-json-pointer, and the remarks password, binary, byte, base64, base64url, path, file-path, \
                              directory-path, color, json-string";

/// Patterns that look around, beside the format whose texts they are: Zod writes both.
const SAID_TWICE: [(&str, &str); 2] = [
    ("duration", r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"),
    (
        "hostname",
        r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$",
    ),
];

/// Whether a pattern says no more than the format beside it.
pub(super) fn says(format: &str, pattern: &str) -> bool {
    SAID_TWICE.contains(&(format, pattern))
}

const POINTER: &str = r"(?:/(?:[^~/\x00-\x1F]|~[01])*)*";

/// What is served by the name; none: it is not.
pub(super) fn format(name: &str) -> Option<Format> {
    match name {
        "date" => Some(Format::Pattern(format!("^(?:{})$", date()))),
        "time" => Some(Format::Pattern(format!("^(?:{})$", time()))),
        "date-time" => Some(Format::Pattern(format!("^(?:{})[tT](?:{})$", date(), time()))),
        "json-pointer" => Some(Format::Pattern(format!("^(?:{POINTER})$"))),
        "relative-json-pointer" => Some(Format::Pattern(format!("^(?:0|[1-9][0-9]*)(?:#|{POINTER})$"))),
        "duration" | "email" | "hostname" | "ipv4" | "ipv6" | "uuid" | "uri" => Some(Format::OfTheLibrary),
        "password" | "binary" | "byte" | "base64" | "base64url" | "path" | "file-path" | "directory-path" | "color"
        | "json-string" => Some(Format::Remark),
        _ => None,
    }
}

/// Days that there are, from the year 1 to 9999: the 29th of February in leap years alone.
fn date() -> String {
    const DAYS: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
    const YEAR: &str = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
    const LEAP: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
    format!("{YEAR}-{DAYS}|{LEAP}-02-29")
}

/// Leap seconds stand at the end of a day of UTC, and are drawn as such.
fn time() -> String {
    const FRACTION: &str = r"(?:\.[0-9]+)?";
    const ZONE: &str = "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    format!("(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{FRACTION}{ZONE}|23:59:60{FRACTION}(?:[zZ]|[+-]00:00)")
}
