//! The page at `/docs`: made once of its three parts.

use std::sync::LazyLock;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};

const FRAME: &str = include_str!("page/docs.html");
const STYLE: &str = include_str!("page/docs.css");
const SCRIPT: &str = include_str!("page/docs.js");

/// With style and script in it.
pub(super) static PAGE: LazyLock<String> =
    LazyLock::new(|| FRAME.replace("/* STYLE */", STYLE).replace("/* SCRIPT */", SCRIPT));

/// Nothing runs but the page's own script, and nothing loads but this server's own answers.
pub(super) static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes())));
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_of_what_is_in_the_page() {
        for (tag, text) in [("script", SCRIPT), ("style", STYLE)] {
            assert!(PAGE.contains(&format!("<{tag}>{text}</{tag}>")), "browsers hash what stands between the tags");
            assert!(!text.contains("</"), "nothing in it ends it early");
        }
        let known = BASE64_STANDARD.encode(digest(&SHA256, b""));
        assert_eq!(known, "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(POLICY.matches("'sha256-").count(), 2);
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for outside in ["http://", "https://", "//cdn", "@import", ": url(", "src=", "<link", "innerHTML", "eval("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }
}
