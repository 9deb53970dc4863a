//! Texts with variables, such as `"$scheme://$host/$1"`: nginx's complex values.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use weir_log::Level;
use weir_proto::uri::{self, Escape};

use crate::subject::Subject;
use crate::variables::{VariableId, Variables};

/// A text that may contain variables and captures of the last match.
#[derive(Debug, Clone, Default)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone)]
enum TemplatePart {
    Text(Bytes),
    Variable(VariableId),
    Group(usize),
}

/// Why a text, or the format of a log, is invalid. Shown in nginx's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// No name follows a `$`.
    Name,
    /// In the format of a log, no name follows a `$`. The text begins with that `$`.
    Parameter(String),
    /// The variable of this name begins with `${` and has no `}`.
    Bracket(String),
}

impl TemplateError {
    pub(crate) fn bracket(name: &[u8]) -> TemplateError {
        TemplateError::Bracket(String::from_utf8_lossy(name).into_owned())
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Name => f.write_str("invalid variable name"),
            TemplateError::Parameter(text) => write!(f, "invalid parameter \"{text}\""),
            TemplateError::Bracket(name) => {
                write!(f, "the closing bracket in \"{name}\" variable is missing")
            }
        }
    }
}

impl Template {
    /// The empty value.
    pub const EMPTY: Template = Template { parts: Vec::new() };

    /// Parses a text as written.
    pub fn new<S: Subject>(
        variables: &mut Variables<S>,
        text: &[u8],
    ) -> Result<Template, TemplateError> {
        if memchr::memchr(b'$', text).is_none() {
            return Ok(if text.is_empty() { Template::EMPTY } else { Template::text(text) });
        }
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(at) = memchr::memchr(b'$', rest) {
            plain.extend_from_slice(&rest[..at]);
            let (part, after) = reference(variables, &rest[at + 1..])?;
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain).into()));
            }
            parts.push(part);
            rest = after;
        }
        plain.extend_from_slice(rest);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain.into()));
        }
        parts.shrink_to_fit();
        Ok(Template { parts })
    }

    /// A value without variables.
    pub fn text(text: &[u8]) -> Template {
        Template { parts: vec![TemplatePart::Text(Bytes::copy_from_slice(text))] }
    }

    /// The text, if it is the same for every subject.
    pub fn constant(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [] => Some(b""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first variable or capture.
    pub fn beginning(&self) -> &[u8] {
        match self.parts.first() {
            Some(TemplatePart::Text(text)) => text,
            _ => b"",
        }
    }

    /// The text as a body, if it is the same for every subject. It is not copied.
    pub fn shared(&self) -> Option<Bytes> {
        match self.parts.as_slice() {
            [] => Some(Bytes::new()),
            [TemplatePart::Text(text)] => Some(text.clone()),
            _ => None,
        }
    }

    /// The constant parts.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts
            .iter()
            .filter_map(|p| if let TemplatePart::Text(text) = p { Some(&**text) } else { None })
    }

    /// The variables.
    pub fn variables(&self) -> impl Iterator<Item = VariableId> {
        self.parts
            .iter()
            .filter_map(|p| if let TemplatePart::Variable(id) = p { Some(*id) } else { None })
    }

    /// The value for a subject. Borrowed if it is constant.
    pub fn eval<S: Subject>(&self, r: &mut S) -> Cow<'_, [u8]> {
        if let Some(text) = self.constant() {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::new();
        self.eval_into(r, &mut out);
        Cow::Owned(out)
    }

    /// The value for a subject as a size in bytes. An invalid size is logged and counts as 0.
    pub fn size<S: Subject>(&self, r: &mut S) -> u64 {
        let text = self.eval(r);
        weir_conf::values::size(&text).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&text);
            r.log(Level::Error, format_args!("invalid size \"{text}\""));
            0
        })
    }

    /// Whether one of these has a value that is neither empty nor `0`: nginx's predicates.
    pub fn any_is_true<S: Subject>(list: &[Template], r: &mut S) -> bool {
        let mut value = Vec::new();
        list.iter().any(|template| {
            value.clear();
            template.eval_into(r, &mut value);
            !matches!(value.as_slice(), b"" | b"0")
        })
    }

    /// The value, and the ranges of it that the configuration vouches for: its constant parts, and
    /// a variable that the value begins with.
    pub fn vouched<S: Subject>(&self, r: &mut S) -> (Vec<u8>, Vec<Range<usize>>) {
        let (mut value, mut vouched) = (Vec::new(), Vec::new());
        for (i, part) in self.parts.iter().enumerate() {
            let start = value.len();
            Self::append(part, r, false, &mut value);
            if matches!(part, TemplatePart::Text(_))
                || i == 0 && matches!(part, TemplatePart::Variable(_))
            {
                vouched.push(start..value.len());
            }
        }
        (value, vouched)
    }

    /// Appends the value for a subject.
    pub fn eval_into<S: Subject>(&self, r: &mut S, out: &mut Vec<u8>) {
        self.eval_escaping(r, false, out);
    }

    /// Appends the value. With `escape_groups`, captures are escaped for a query, as in nginx's
    /// rewrite module.
    pub fn eval_escaping<S: Subject>(&self, r: &mut S, escape_groups: bool, out: &mut Vec<u8>) {
        for part in &self.parts {
            Self::append(part, r, escape_groups, out);
        }
    }

    fn append<S: Subject>(part: &TemplatePart, r: &mut S, escape_groups: bool, out: &mut Vec<u8>) {
        match part {
            TemplatePart::Text(text) => out.extend_from_slice(text),
            TemplatePart::Variable(id) => {
                r.variable(*id, out);
            }
            TemplatePart::Group(n) => {
                let group = r.captures().get(*n).unwrap_or_default();
                if escape_groups {
                    uri::escape(Escape::Args, group, out);
                } else {
                    out.extend_from_slice(group);
                }
            }
        }
    }
}

/// Parses the reference behind a `$`, such as `1`, `name` or `{name}`. Also returns the rest.
/// `${1}` is a variable, as in nginx.
fn reference<'t, S: Subject>(
    variables: &mut Variables<S>,
    text: &'t [u8],
) -> Result<(TemplatePart, &'t [u8]), TemplateError> {
    if let [digit @ b'1'..=b'9', after @ ..] = text {
        return Ok((TemplatePart::Group(usize::from(digit - b'0')), after));
    }
    let (braced, body) = match text.strip_prefix(b"{") {
        Some(body) => (true, body),
        None => (false, text),
    };
    let len = body.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let (name, after) = body.split_at(len);
    if name.is_empty() {
        return Err(TemplateError::Name);
    }
    let after = match braced {
        true => after.strip_prefix(b"}").ok_or_else(|| TemplateError::bracket(name))?,
        false => after,
    };
    Ok((TemplatePart::Variable(variables.refer(name)), after))
}
