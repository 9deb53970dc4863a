//! `match { }`: the conditions under which an answer counts as healthy.

use weir_conf::{Directive, Error};

use crate::config::scope::Scope;
use crate::regex::Regex;

/// The conditions of one block, all of which must hold.
#[derive(Debug, Default)]
pub struct Match {
    /// Its name.
    pub name: String,
    status: Option<StatusMatch>,
    headers: Vec<Header>,
    body: Vec<BodyMatch>,
    required: Vec<Required>,
}

/// A variable of `require $VARIABLE ...`. Only variables of the answer are possible.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Required {
    /// `$upstream_status`, `$status`
    Status,
    /// `$upstream_http_NAME`: the name of the header.
    Header(Vec<u8>),
}

/// `status [!] CODE | FROM-TO ...`
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct StatusMatch {
    not: bool,
    ranges: Vec<(u16, u16)>,
}

/// `header NAME [OPERATOR VALUE]`, `header ! NAME`
#[derive(Debug)]
struct Header {
    name: Vec<u8>,
    must: Must,
}

#[derive(Debug)]
enum Must {
    Exist,
    BeAbsent,
    Be(Vec<u8>),
    NotBe(Vec<u8>),
    Fit(Regex),
    NotFit(Regex),
}

/// `body ~ "..."`, `body !~ "..."`
#[derive(Debug)]
struct BodyMatch {
    not: bool,
    regex: Regex,
}

/// The answer to a check.
pub struct Seen<'a> {
    /// Its status.
    pub status: u16,
    /// Its header lines.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The beginning of its body.
    pub body: &'a [u8],
}

impl Match {
    /// Reads a block.
    pub fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Match, Error> {
        let name = d.arg(0).map(|word| word.lossy().into_owned()).unwrap_or_default();
        let mut this = Match { name, ..Match::default() };
        for line in d.block() {
            match &*line.name.lossy() {
                "status" if this.status.is_some() => return Err(line.problem("is duplicate")),
                "status" => this.status = Some(StatusMatch::read(line)?),
                "header" => this.headers.push(Header::read(s, line)?),
                "body" => this.body.push(BodyMatch::read(s, line)?),
                "require" => this.required.extend(Required::read(line)?),
                other => return Err(line.error(format!("unknown directive \"{other}\""))),
            }
        }
        Ok(this)
    }

    /// Whether the body is needed.
    pub fn wants_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// Checks an answer. The error is the failed step, in words of the log.
    pub fn judge(&self, seen: &Seen<'_>) -> Result<(), &'static str> {
        if self.status.as_ref().is_some_and(|status| !status.fits(seen.status)) {
            return Err("checking status code");
        }
        if !self.headers.iter().all(|header| header.fits(seen.headers)) {
            return Err("checking header");
        }
        if !self.required.iter().all(|required| required.is_met(seen)) {
            return Err("checking variables");
        }
        if !self.body.iter().all(|body| body.regex.is_match(seen.body) != body.not) {
            return Err("checking body");
        }
        Ok(())
    }
}

impl Required {
    fn read(d: &Directive) -> Result<Vec<Required>, Error> {
        if d.args.is_empty() {
            return Err(d.problem("has no variables"));
        }
        let each = d.args.iter().map(|word| {
            let name = word.bytes.strip_prefix(b"$").ok_or_else(|| d.invalid("parameter", word))?;
            match (name, name.strip_prefix(b"upstream_http_")) {
                (b"status" | b"upstream_status", _) => Ok(Required::Status),
                (_, Some(header)) if !header.is_empty() => Ok(Required::Header(header.to_vec())),
                _ => {
                    let text = "is no variable of an answer, and a check has no request";
                    Err(d.error_at(word, format!("\"{}\" {text}", word.lossy())))
                }
            }
        });
        each.collect()
    }

    /// Whether the value is neither empty nor `0`.
    fn is_met(&self, seen: &Seen<'_>) -> bool {
        match self {
            Required::Status => seen.status != 0,
            Required::Header(name) => {
                let fits = |header: &&(&[u8], &[u8])| crate::variables::same_name(header.0, name);
                let value = seen.headers.iter().find(fits).map(|(_, value)| *value);
                value.is_some_and(|value| !matches!(value, b"" | b"0"))
            }
        }
    }
}

impl StatusMatch {
    fn read(d: &Directive) -> Result<StatusMatch, Error> {
        let mut this = StatusMatch::default();
        for (i, word) in d.args.iter().enumerate() {
            if i == 0 && word.is("!") {
                this.not = true;
                continue;
            }
            this.ranges.push(range(&word.lossy()).ok_or_else(|| d.invalid("parameter", word))?);
        }
        match this.ranges.is_empty() {
            true => Err(d.problem("has no codes")),
            false => Ok(this),
        }
    }

    fn fits(&self, status: u16) -> bool {
        let within = self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&status));
        within != self.not
    }
}

/// `200`, `200-399`
fn range(text: &str) -> Option<(u16, u16)> {
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| (100..=599).contains(code));
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (code(from)?, code(to)?);
    (from <= to).then_some((from, to))
}

impl Header {
    fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Header, Error> {
        let (name, must) = match d.args.as_slice() {
            [not, name] if not.is("!") => (name, Must::BeAbsent),
            [name] => (name, Must::Exist),
            [name, operator, value] => {
                let must = match operator.bytes.as_slice() {
                    b"=" => Must::Be(value.bytes.clone()),
                    b"!=" => Must::NotBe(value.bytes.clone()),
                    b"~" => Must::Fit(s.setup.regex(d, value, &value.bytes, false)?),
                    b"!~" => Must::NotFit(s.setup.regex(d, value, &value.bytes, false)?),
                    _ => return Err(d.invalid("parameter", operator)),
                };
                (name, must)
            }
            _ => return Err(d.problem("is not understood")),
        };
        Ok(Header { name: name.bytes.clone(), must })
    }

    fn fits(&self, headers: &[(&[u8], &[u8])]) -> bool {
        let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(&self.name));
        match (&self.must, found.map(|(_, value)| *value)) {
            (Must::Exist, found) => found.is_some(),
            (Must::BeAbsent, found) => found.is_none(),
            (Must::Be(wanted), found) => found == Some(wanted.as_slice()),
            (Must::NotBe(unwanted), found) => found != Some(unwanted.as_slice()),
            (Must::Fit(regex), found) => found.is_some_and(|value| regex.is_match(value)),
            (Must::NotFit(regex), found) => !found.is_some_and(|value| regex.is_match(value)),
        }
    }
}

impl BodyMatch {
    fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<BodyMatch, Error> {
        match d.args.as_slice() {
            [operator, value] if operator.is("~") || operator.is("!~") => Ok(BodyMatch {
                not: operator.is("!~"),
                regex: s.setup.regex(d, value, &value.bytes, false)?,
            }),
            _ => Err(d.problem("is not understood")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_ranges() {
        assert_eq!(range("200"), Some((200, 200)));
        assert_eq!(range("200-399"), Some((200, 399)));
        for bad in ["", "20", "600", "399-200", "200-", "-200", "2xx"] {
            assert_eq!(range(bad), None, "{bad}");
        }
        let status = StatusMatch { not: true, ranges: vec![(301, 303), (307, 307)] };
        assert!(status.fits(200) && status.fits(304) && !status.fits(302) && !status.fits(307));
    }

    #[test]
    fn all_rules_must_hold() {
        let header = |name: &str, must| Header { name: name.as_bytes().to_vec(), must };
        let rules = Match {
            status: Some(StatusMatch { not: false, ranges: vec![(200, 299)] }),
            headers: vec![
                header("Content-Type", Must::Be(b"text/html".to_vec())),
                header("X-Bad", Must::BeAbsent),
            ],
            ..Match::default()
        };
        let judge =
            |status, headers: &[(&[u8], &[u8])]| rules.judge(&Seen { status, headers, body: b"" });
        let html: (&[u8], &[u8]) = (b"content-type", b"text/html");
        assert_eq!(judge(200, &[html]), Ok(()));
        assert_eq!(judge(500, &[html]), Err("checking status code"));
        assert_eq!(judge(200, &[]), Err("checking header"));
        assert_eq!(judge(200, &[html, (b"x-bad", b"")]), Err("checking header"));
    }

    #[test]
    fn what_is_required_is_neither_empty_nor_zero() {
        let rules = Match {
            required: vec![Required::Header(b"x_ready".to_vec()), Required::Status],
            ..Match::default()
        };
        let judge = |value: &[u8]| {
            rules.judge(&Seen { status: 200, headers: &[(b"X-Ready", value)], body: b"" })
        };
        assert_eq!(judge(b"yes"), Ok(()));
        assert_eq!(judge(b""), Err("checking variables"));
        assert_eq!(judge(b"0"), Err("checking variables"));
        let none = rules.judge(&Seen { status: 200, headers: &[], body: b"" });
        assert_eq!(none, Err("checking variables"));
    }
}
