//! Headers of the answer and of the request.

use std::borrow::Cow;

use mlua::{Lua, Table, Value};
use weir_proto::http1::Version;

use super::natives::{AnswerKind, Natives, borrowed, failed, named};
use crate::answer::change::{
    NoLength, Unfit, WITH_A_FIELD, add_request, fits_request, set_answer, set_location_as_said,
    set_request,
};
use crate::modules::lua::answer;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::current::{NgxError, with};
use crate::request::Request;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    // Nil, a text, or true if there are several.
    natives.direct("get_header", |passed, answer| {
        with(|r| {
            let name = &dashed(r, passed.first);
            let out = answer.text();
            if r.response.special_header(&lower(name, b'_'), out) {
                return AnswerKind::Text;
            }
            let mut all = lines_of_name(r, name);
            match (all.next(), all.next()) {
                (None, _) => AnswerKind::Nil,
                (Some(one), None) => {
                    out.extend_from_slice(one);
                    AnswerKind::Text
                }
                (Some(_), Some(_)) => AnswerKind::True,
            }
        })
    })?;
    natives.add_refusing("get_header_lines", |lua, name: mlua::String| {
        with(|r| {
            let name = &name.as_bytes();
            let name = &dashed(r, name);
            lua.create_sequence_from(lines_of_name(r, name).map(borrowed))
        })
    })?;
    natives.add_refusing("set_header", |lua, (name, value): (mlua::String, Value)| {
        set(&name.as_bytes(), &mut values(lua, &value)?)
    })?;
    natives.direct("set_header_text", |passed, _| {
        set(passed.first, &mut [passed.second.to_vec()]).map(|()| AnswerKind::Nil)
    })?;
    natives.add("answer_headers", |lua, (most, raw): (Option<usize>, Option<bool>)| {
        let all = with(|r| {
            let mut all = answer_headers(r);
            let connection: &[u8] = match r.response.status {
                101 => b"upgrade",
                _ if r.keepalive && r.is_main() => b"keep-alive",
                _ => b"close",
            };
            all.push((b"connection".to_vec(), connection.to_vec()));
            for (name, _) in &mut all {
                if IN_LOWER_CASE.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                    name.make_ascii_lowercase();
                }
            }
            all
        });
        let all = all.and_then(|all| {
            let lines = all.iter().map(|(n, v)| (n.as_slice(), v.as_slice()));
            lines_of(lua, lines, most, raw == Some(true)).map_err(failed)
        });
        flat(all)
    })?;
    natives.add("request_headers", |lua, (most, raw): (Option<usize>, Option<bool>)| {
        let all = with(|r| lines_of(lua, r.headers(), most, raw == Some(true)).map_err(failed));
        flat(all.and_then(|all| all))
    })?;
    natives.add_refusing("set_request_header", |lua, (name, value): (mlua::String, Value)| {
        change_request(&name.as_bytes(), &values(lua, &value)?, set_request)
    })?;
    natives.add_refusing("add_request_header", |lua, (name, value): (mlua::String, Value)| {
        change_request(&name.as_bytes(), &values(lua, &value)?, add_request)
    })?;
    natives.direct("set_request_header_text", |passed, _| {
        let values = [passed.second.to_vec()];
        change_request(passed.first, &values, set_request).map(|()| AnswerKind::Nil)
    })
}

/// Headers of the answer whose names are in lower case for `ngx.resp.get_headers(max, true)`, too.
const IN_LOWER_CASE: &[&[u8]] = &[b"content-type", b"content-length", b"transfer-encoding"];

/// What a script sees where a header cannot have its value.
const UNSET: &str = "failed to set header";

type Change = fn(&mut Request, &[u8], &[Vec<u8>]);

fn change_request(name: &[u8], values: &[Vec<u8>], change: Change) -> Result<(), NgxError> {
    let fitting = values.iter().try_for_each(|value| fits_request(name, value));
    with(|r| {
        // A request of HTTP/0.9 has no headers.
        if r.version <= Version::Http09 {
            return Ok(());
        }
        fitting.map_err(|Unfit| NgxError::from(UNSET))?;
        change(r, name, values);
        Ok(())
    })?
}

/// The lines of a header of the answer that has no field of its own.
fn lines_of_name<'r>(r: &'r Request, name: &'r [u8]) -> impl Iterator<Item = &'r [u8]> {
    let all = r.response.headers.iter();
    all.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Sets a header of the answer, if the head was not sent yet.
fn set(name: &[u8], values: &mut [Vec<u8>]) -> Result<(), NgxError> {
    with(|r| {
        let name = &*dashed(r, name);
        if !r.response.sent && name.eq_ignore_ascii_case(b"location") {
            // The last URL counts. Paths are set as several lines.
            let are_paths = values.iter().all(|value| value.starts_with(b"/"));
            let from = if are_paths { 0 } else { values.len().saturating_sub(1) };
            set_location_as_said(r, values.get_mut(from..).unwrap_or_default());
            return Ok(());
        }
        if name.eq_ignore_ascii_case(b"content-type") {
            answer::context(r).typeless = values.iter().all(|value| value.is_empty());
        }
        if !r.response.sent {
            return set_answer(r, name, values).map_err(|NoLength| UNSET.into());
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let text = "attempt to set ngx.header.HEADER after sending out response headers";
        r.log(weir_log::Level::Error, format_args!("{text} ({name})"));
        Ok(())
    })?
}

/// A header's name with `-` for `_`, since names in Lua cannot have `-`.
fn dashed<'n>(r: &Request, name: &'n [u8]) -> Cow<'n, [u8]> {
    let mut name = Cow::Borrowed(name);
    if name.contains(&b'_') && CONF.of(r.conf()).underscores {
        name.to_mut().iter_mut().filter(|b| **b == b'_').for_each(|b| *b = b'-');
    }
    name
}

/// The values of a header: none, one, or several.
fn values(lua: &Lua, value: &Value) -> Result<Vec<Vec<u8>>, NgxError> {
    let one = |value: &Value| {
        let text = match value {
            Value::Boolean(value) => Some(value.to_string().into_bytes()),
            value => super::natives::bytes(lua, value),
        };
        text.ok_or_else(|| "invalid header value".into())
    };
    match value {
        Value::Nil => Ok(Vec::new()),
        Value::Table(table) => {
            let list = table.sequence_values::<Value>().flatten();
            list.map(|value| one(&value)).collect()
        }
        value => Ok(vec![one(value)?]),
    }
}

/// Headers by name, in lower case unless `raw`, and "truncated" if there were more than `most` (100
/// by default; 0 is any number).
fn lines_of<'a>(
    lua: &Lua,
    lines: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    most: Option<usize>,
    raw: bool,
) -> mlua::Result<HeaderTables> {
    let most = most.filter(|most| *most != 0).unwrap_or(most.map_or(100, |_| usize::MAX));
    let mut lines = lines.map(|(name, value)| match raw {
        true => (Cow::Borrowed(name), Some(Cow::Borrowed(value))),
        false => (Cow::Owned(name.to_ascii_lowercase()), Some(Cow::Borrowed(value))),
    });
    let all: Vec<_> = lines.by_ref().take(most).collect();
    let truncated = lines.next().map(|_| "truncated");
    Ok((named(lua, &all)?, truncated))
}

type HeaderTables = (super::natives::NamedValues, Option<&'static str>);

/// The result for the prelude: an error; or a table by names, or a list of names and values, and
/// "truncated".
fn flat(
    lines: Result<HeaderTables, NgxError>,
) -> (Option<String>, Option<Table>, Option<Table>, Option<&'static str>) {
    match lines {
        Ok(((all, list), truncated)) => (None, all, list, truncated),
        Err(refusal) => (Some(refusal.to_string()), None, None, None),
    }
}

fn lower(name: &[u8], dash: u8) -> Vec<u8> {
    let fold = |b: &u8| if *b == b'-' { dash } else { b.to_ascii_lowercase() };
    name.iter().map(fold).collect()
}

/// The headers of the answer that are known so far.
pub fn answer_headers(r: &Request) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for name in WITH_A_FIELD {
        let mut value = Vec::new();
        if r.response.special_header(&lower(name.as_bytes(), b'_'), &mut value) {
            all.push((name.as_bytes().to_vec(), value));
        }
    }
    all.extend(r.response.headers.iter().map(|(n, v)| (n.to_vec(), v.to_vec())));
    all
}
