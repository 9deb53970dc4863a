//! Encodings: URI escapes, base64, query strings, SQL quotes.

use std::borrow::Cow;

use mlua::Lua;
use weir_proto::base64::{self, Alphabet};

use super::natives::{AnswerKind, NamedValues, Natives, named};
use crate::modules::lua::current::NgxError;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("escape_uri", |passed, answer| {
        let [kind, ..] = passed.numbers;
        escape(passed.first, kind as i64, answer.text());
        Ok::<_, NgxError>(AnswerKind::Text)
    })?;
    natives.direct_text("unescape_uri", |text, out| out.extend_from_slice(&unescape(text)))?;
    natives.direct("encode_base64", |passed, answer| {
        let ([plain, ..], out) = (passed.numbers, answer.text());
        base64::encode(Alphabet::Plain, passed.first, out);
        while plain != 0.0 && out.last() == Some(&b'=') {
            out.pop();
        }
        Ok::<_, NgxError>(AnswerKind::Text)
    })?;
    natives.direct("decode_base64", |passed, answer| {
        let decoded = base64::decode(Alphabet::Plain, passed.first);
        Ok::<_, NgxError>(decoded.map_or(AnswerKind::Nil, |bytes| {
            answer.set_text(bytes);
            AnswerKind::Text
        }))
    })?;
    natives.add("quote_sql", |lua, text: mlua::String| {
        lua.create_string(quote_sql(&text.as_bytes()))
    })?;
    natives.add("decode_args", |lua, (text, most): (mlua::String, Option<usize>)| {
        let ((all, list), truncated) =
            decode_args(lua, &text.as_bytes(), most, Counted::All).unwrap_or_default();
        (all, list, truncated)
    })
}

/// Escapes a text as `ngx.escape_uri` does for a type. lua-nginx-module has character sets of its
/// own; types from 5 on do not escape bytes above 0x7e.
fn escape(text: &[u8], kind: i64, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let escaped: &[u8] = match kind {
        0 => b" #%?",
        1 => b" #%+?",
        3 => b" \"#%'",
        4 => b" \"'",
        5.. => b" %",
        _ => b" \"#$%&+,/:;<=>?@[\\]^`{|}",
    };
    for byte in text {
        if *byte < b' ' || *byte > b'~' && kind < 5 || escaped.contains(byte) {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            out.extend_from_slice(&[b'%', HEX[high], HEX[low]]);
        } else {
            out.push(*byte);
        }
    }
}

/// Decodes URI escapes. Invalid ones stay as they are.
fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'%', b'+', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'%', [high, low, ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    rest = &after[2..];
                }
                _ => out.push(byte),
            },
            (b'+', _) => out.push(b' '),
            _ => out.push(byte),
        }
    }
    Cow::Owned(out)
}

/// Escapes bytes that would break a request line, so that a query can be passed to an upstream.
pub fn query(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            ..=b' ' | 0x7f => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => out.push(*byte),
        }
    }
    out
}

/// The error for a URI with control characters. It shows the first of them, and the URI as in the
/// log.
pub fn unsafe_byte(what: &str, uri: &[u8]) -> Option<String> {
    let odd = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
    let byte = uri.iter().copied().find(odd)?;
    let mut shown = String::with_capacity(uri.len());
    for byte in uri {
        match byte {
            b'"' | b'\\' | ..b' ' | 0x7f.. => shown.push_str(&format!("\\x{byte:02X}")),
            byte => shown.push(char::from(*byte)),
        }
    }
    Some(format!("unsafe byte \"0x{byte:02x}\" in {what} \"{shown}\""))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Which arguments count against a limit, as in lua-nginx-module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Those with a name. The result is truncated if there are more pieces between `&` than the limit.
    Named,
    /// All pieces between `&`, also empty ones.
    All,
}

/// The arguments by name, `true` for those without a value, and "truncated" if there were more than
/// `most` (100 by default; 0 is any number).
pub fn decode_args(
    lua: &Lua,
    text: &[u8],
    most: Option<usize>,
    counted: Counted,
) -> mlua::Result<(NamedValues, Option<&'static str>)> {
    let most = most.filter(|most| *most != 0).unwrap_or(most.map_or(100, |_| usize::MAX));
    let truncated = memchr::memchr_iter(b'&', text).count() >= most;
    let mut all = Vec::new();
    for (i, part) in text.split(|b| *b == b'&').enumerate() {
        let before = if counted == Counted::Named { all.len() } else { i };
        if before == most {
            break;
        }
        match memchr::memchr(b'=', part) {
            Some(0) => {}
            None if part.is_empty() => {}
            Some(at) => all.push((unescape(&part[..at]), Some(unescape(&part[at + 1..])))),
            None => all.push((unescape(part), None)),
        }
    }
    Ok((named(lua, &all)?, truncated.then_some("truncated")))
}

/// Quotes a text as MySQL reads it.
fn quote_sql(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in text {
        match byte {
            0 => out.extend_from_slice(b"\\0"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            8 => out.extend_from_slice(b"\\b"),
            0x1a => out.extend_from_slice(b"\\Z"),
            b'\\' | b'\'' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_whatever_stands_in_them() {
        assert_eq!(quote_sql(b"a'b\\\"\n\0"), b"'a\\'b\\\\\\\"\\n\\0'");
    }

    #[test]
    fn a_query_cannot_leave_its_line() {
        assert_eq!(query(b"a=1 HTTP/1.1\r\nX: y"), b"a=1%20HTTP/1.1%0D%0AX:%20y".as_slice());
    }

    #[test]
    fn a_plus_is_a_space() {
        assert_eq!(*unescape(b"a+b%2Bc%zz%4"), *b"a b+c%zz%4");
        assert_eq!(*unescape(b"plain"), *b"plain");
    }
}
