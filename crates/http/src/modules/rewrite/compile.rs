//! Compiles directives to operations. The lines of an `if` are compiled in place, into the code of
//! the block around it.

use std::borrow::Cow;

use weir_conf::{Contexts, Directive, Error, Spot, values};

use super::code::{Op, Rewrite, Test, Then, is_redirect};
use super::condition;
use crate::config::Setup;
use crate::config::place::Place;
use crate::config::scope::Scope;
use crate::core::open_reserved;
use crate::modules::lua;
use crate::modules::rewrite::CONF;
use crate::site::location::Kind;
use crate::variables::{VariableId, prefixed};

/// Compiles a line of a server or location, and appends it to the block's code.
pub fn line(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if in_if(s) {
        // The line was compiled together with its `if`.
        return Ok(());
    }
    let mut code = std::mem::take(&mut CONF.change(&mut s.location).code);
    let done = compile(s, d, &mut code);
    let conf = CONF.change(&mut s.location);
    conf.tests_files |= code.iter().any(|op| matches!(op, Op::If { test: Test::File { .. }, .. }));
    conf.code = code;
    done
}

/// Reads the settings in the block of an `if`.
pub fn settings_of_if(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if s.context.meets(Contexts::SERVER) {
        // In a server, such a block has only lines that are compiled.
        return Ok(());
    }
    let at = s.conditional_blocks.iter().position(|(pos, _)| *pos == d.name.pos);
    let Some((_, id)) = at.map(|at| s.conditional_blocks.remove(at)) else { return Ok(()) };
    let place = Place::new(&s.place.name.clone(), Kind::If);
    open_reserved(s, d, place, Contexts::IF_LOCATION, id)
}

fn in_if(s: &Scope<'_, '_>) -> bool {
    s.context.meets(Contexts::IF_SERVER | Contexts::IF_LOCATION)
}

fn compile(s: &mut Scope<'_, '_>, d: &Directive, code: &mut Vec<Op>) -> Result<(), Error> {
    match d.name.bytes.as_slice() {
        b"rewrite" => code.push(Op::Rewrite(Box::new(rewrite(s, d)?))),
        b"return" => code.push(ret(s, d)?),
        b"break" => code.push(Op::Break),
        b"set" => code.push(set(s, d)?),
        b"set_by_lua" | b"set_by_lua_block" | b"set_by_lua_file" => code.push(set_by_lua(s, d)?),
        b"if" => branch(s, d, code)?,
        _ => {}
    }
    Ok(())
}

fn branch(s: &mut Scope<'_, '_>, d: &Directive, code: &mut Vec<Op>) -> Result<(), Error> {
    let test = condition::read(s, d)?;
    let block = if s.context.meets(Contexts::LOCATION) {
        let id = s.setup.reserve();
        s.conditional_blocks.push((d.name.pos, id));
        Some(id)
    } else {
        None
    };
    let mut inner = Vec::new();
    for line in d.block() {
        compile(s, line, &mut inner)?;
    }
    code.push(Op::If { test, block, len: inner.len() });
    code.append(&mut inner);
    Ok(())
}

fn set(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Op, Error> {
    let (Some(name), Some(word)) = (d.arg(0), d.arg(1)) else {
        return Err(d.error("invalid number of arguments in \"set\" directive"));
    };
    let name = s.new_variable(d, name)?;
    let variable = uninitialized(s, name.as_bytes());
    let value = s.setup.template(d, word)?;
    let written = Spot::new(d, word);
    s.setup.variables.own_texts_of(name.as_bytes(), value.texts(), written);
    Ok(Op::Set { variable, value })
}

/// `set_by_lua $name SCRIPT [ARG ...]`
fn set_by_lua(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Op, Error> {
    let Some(name) = d.arg(0) else { return Err(d.error("no variable is named")) };
    let name = s.new_variable(d, name)?;
    let variable = uninitialized(s, name.as_bytes());
    let script = lua::read(s, d, 1)?;
    let args = d.args.iter().skip(2).map(|word| s.setup.template(d, word));
    let args = args.collect::<Result<_, _>>()?;
    Ok(Op::SetByLua { variable, script, args })
}

/// A variable that may be read before a `set` of it has run.
fn uninitialized(s: &mut Scope<'_, '_>, name: &[u8]) -> VariableId {
    let name = name.to_ascii_lowercase();
    if let Some(get) = prefixed(&name) {
        // Before a `set` has run, `$http_x` is the header.
        return s.setup.variables.stored_or(&name, move |r, out| get(r, out));
    }
    let text = String::from_utf8_lossy(&name).into_owned();
    s.setup.variables.stored_or(&name, move |r, _| {
        if CONF.of(r.conf()).warn {
            let level = weir_log::Level::Warn;
            r.log(level, format_args!("using uninitialized \"{text}\" variable{}", r.doing()));
        }
        true
    })
}

/// `return code [text]`, `return code URL`, `return URL`
fn ret(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Op, Error> {
    let Some(first) = d.arg(0) else {
        return Err(d.error("invalid number of arguments in \"return\" directive"));
    };
    let (status, text) = match values::number(&first.bytes) {
        Some(code @ 0..=999) => (code as u16, d.arg(1)),
        None if d.args.len() == 1 && is_url(&first.bytes) => (302, Some(first)),
        _ => {
            return Err(d.invalid("return code", first));
        }
    };
    let read = if is_redirect(status) { Setup::line } else { Setup::template };
    let text = text.map(|word| read(s.setup, d, word)).transpose()?;
    Ok(Op::Return { status, text, line: d.name.pos })
}

/// `rewrite pattern replacement [last|break|redirect|permanent]`
fn rewrite(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Rewrite, Error> {
    let (Some(pattern), Some(to)) = (d.arg(0), d.arg(1)) else {
        return Err(d.error("invalid number of arguments in \"rewrite\" directive"));
    };
    if to.bytes.is_empty() {
        return Err(d.error_at(to, "empty replacement"));
    }
    let pattern = s.setup.regex(d, pattern, &pattern.bytes, false)?;
    let mut then = if is_url(&to.bytes) { Then::Redirect(302) } else { Then::Go };
    if let Some(flag) = d.arg(2) {
        then = match (flag.bytes.as_slice(), then) {
            (b"redirect", _) => Then::Redirect(302),
            (b"permanent", _) => Then::Redirect(301),
            (b"last" | b"break", Then::Redirect(_)) => then,
            (b"last", _) => Then::Last,
            (b"break", _) => Then::Break,
            _ => {
                return Err(d.invalid("parameter", flag));
            }
        };
    }
    let text = match then {
        Then::Redirect(_) => s.setup.line_text(d, to, &to.bytes),
        Then::Go | Then::Last | Then::Break => Cow::Borrowed(to.bytes.as_slice()),
    };
    let (text, keep_args) = match text.strip_suffix(b"?") {
        Some(text) => (text, false),
        None => (&*text, true),
    };
    let query = memchr::memchr(b'?', text);
    let (path, args) = match (query, then) {
        (Some(at), Then::Go | Then::Last | Then::Break) => (&text[..at], Some(&text[at + 1..])),
        _ => (text, None),
    };
    let mut template = |text: &[u8]| s.setup.template_of(d, to, text);
    let (path, args) = (template(path)?, args.map(template).transpose()?);
    let (has_query, line) = (query.is_some(), d.name.pos);
    Ok(Rewrite { pattern, path, args, has_query, keep_args, then, line })
}

/// Whether the replacement is a URL, which redirects the client.
fn is_url(text: &[u8]) -> bool {
    [b"http://".as_slice(), b"https://", b"$scheme"].iter().any(|start| text.starts_with(start))
}
