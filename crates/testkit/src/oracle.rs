//! nginx for comparisons, if it is installed.

use std::process::Command;

/// An nginx binary.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// The program.
    pub path: String,
    /// Its version, such as `1.31.5`.
    pub version: String,
    built: String,
}

impl Oracle {
    /// Finds `$WEIR_NGINX`, or `nginx` on the path. If there is none, a message is printed.
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

    /// The middle part of the version: 31 of 1.31.5.
    pub fn minor(&self) -> u32 {
        self.version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
    }

    /// Whether it is older than the version that weir follows, so that some answers legitimately
    /// differ.
    pub fn is_old(&self) -> bool {
        self.minor() < 31
    }

    /// Whether its output of `-V` contains this, such as `http_v2_module`.
    pub fn has(&self, what: &str) -> bool {
        self.built.contains(what)
    }
}

/// The signatures of error pages.
const SIGNATURES: [&str; 2] = ["<center>nginx</center>", "<center>weir</center>"];

/// Whether a text is an error page with a signature.
pub fn is_signed(text: &str) -> bool {
    SIGNATURES.iter().any(|signature| text.contains(signature))
}

/// A text without the parts that differ between servers: signatures, and multipart boundaries,
/// which are counters.
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
    fn parts_that_differ_between_servers_are_masked() {
        assert!(is_signed("<center>weir</center>") && !is_signed("weir"));
        let text = unsigned("boundary=0012\n--0012--\n<center>nginx</center>");
        assert_eq!(text, "boundary=BOUNDARY\n--BOUNDARY--\n<center>NAME</center>");
    }
}
