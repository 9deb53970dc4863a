//! nginx, where there is one to compare with.

use std::process::Command;

/// An nginx, and what it says of itself.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// The program.
    pub path: String,
    /// Its version, such as `1.31.5`.
    pub version: String,
    built: String,
}

impl Oracle {
    /// `$WEIR_NGINX`, or `nginx` on the path; where there is none, the output says so.
    pub fn find() -> Option<Oracle> {
        let path = std::env::var("WEIR_NGINX").unwrap_or_else(|_| "nginx".to_owned());
        let found = Oracle::at(path);
        if found.is_none() {
            println!("not run: no nginx to compare with");
        }
        found
    }

    fn at(path: String) -> Option<Oracle> {
        let said = Command::new(&path).arg("-V").output().ok()?;
        let built = String::from_utf8_lossy(&said.stderr).into_owned();
        let version = built.split("nginx/").nth(1)?.split_whitespace().next()?.to_owned();
        Some(Oracle { path, version, built })
    }

    /// The middle part of its version: 31 of 1.31.5.
    pub fn minor(&self) -> u32 {
        self.version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
    }

    /// Whether it is older than what weir follows, so that some answers differ by right.
    pub fn is_old(&self) -> bool {
        self.minor() < 31
    }

    /// Whether it was built with something, as `-V` names it, such as `http_v2_module`.
    pub fn has(&self, what: &str) -> bool {
        self.built.contains(what)
    }
}

/// How each server signs its own pages.
const SIGNATURES: [&str; 2] = ["<center>nginx</center>", "<center>weir</center>"];

/// Whether a text is a page that a server signed.
pub fn is_signed(text: &str) -> bool {
    SIGNATURES.iter().any(|signature| text.contains(signature))
}

/// A text without what two servers cannot have in common: signatures, and multipart boundaries, which are counters.
pub fn unsigned(text: &str) -> String {
    let replaced =
        |text: String, signature: &&str| text.replace(*signature, "<center>NAME</center>");
    let text = SIGNATURES.iter().fold(text.to_owned(), replaced);
    let Some(at) = text.find("boundary=") else { return text };
    let boundary: String = text[at + 9..].chars().take_while(char::is_ascii_digit).collect();
    if boundary.is_empty() { text } else { text.replace(&boundary, "BOUNDARY") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_equal_is_named() {
        assert!(is_signed("<center>weir</center>") && !is_signed("weir"));
        let text = unsigned("boundary=0012\n--0012--\n<center>nginx</center>");
        assert_eq!(text, "boundary=BOUNDARY\n--BOUNDARY--\n<center>NAME</center>");
    }
}
