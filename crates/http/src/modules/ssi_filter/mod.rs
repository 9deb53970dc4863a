//! Server-side includes: runs commands in pages. nginx: ngx_http_ssi_filter_module.
//!
//! `parser` finds commands, `commands` runs them, `text` expands variables, `strftime` formats
//! dates.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use weir_engine::{Boxed, Chain};
use weir_log::Level;

use crate::answer::filters::{BodyFilter, Filtered, into_bytes};
use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::config::types::{Types, types_setting};
use crate::phases::Step;
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod commands;
mod parser;
pub mod strftime;
mod text;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use commands::{Fault, SsiPage};
use strftime::{Moment, strftime};
use weir_conf::Directive as Line;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    on: bool,
    silent_errors: bool,
    last_modified: bool,
    types: Types,
    value_length: u64,
    /// No effect: weir does not copy parts of files into buffers.
    min_file_chunk: u64,
    /// No effect: weir has no recycled buffers.
    ignore_recycled_buffers: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            on: false,
            silent_errors: false,
            last_modified: false,
            types: Types::default(),
            value_length: 255,
            min_file_chunk: 1024,
            ignore_recycled_buffers: false,
        }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    setting!("ssi", CONF.on, Line::flag, "Performs the commands in pages."),
    setting!(
        "ssi_silent_errors",
        CONF.silent_errors,
        Line::flag,
        "Keeps the message about a failed command out of the page."
    ),
    setting!(
        "ssi_last_modified",
        CONF.last_modified,
        Line::flag,
        "Keeps `Last-Modified` of the page itself."
    ),
    types_setting!("ssi_types", CONF.types, "Types of pages that are looked through."),
    setting!(
        "ssi_value_length",
        CONF.value_length,
        Line::size,
        "The longest value of a command's parameter."
    ),
    setting!(
        "ssi_min_file_chunk",
        CONF.min_file_chunk,
        Line::size,
        "Accepted: text between commands is sent from memory."
    ),
    setting!(
        "ssi_ignore_recycled_buffers",
        CONF.ignore_recycled_buffers,
        Line::flag,
        "Accepted: weir has no such buffers."
    ),
];

/// The state of a request.
static CONTEXT: ContextKey<Context> = ContextKey::passing();

/// The state that a main request and its subrequests share.
static SHARED: ContextKey<Rc<RefCell<SsiShared>>> = ContextKey::passing();

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_ssi", directives: DIRECTIVES, init, ..Module::NEW };

fn init(setup: &mut crate::config::Setup<'_>) {
    setup.variables.define("date_local", |r, out| {
        let unix = r.event_loop.handle.wall().secs;
        let (offset, zone) = (weir_sys::localtime::local(unix).offset, zone(unix));
        date(r, out, Moment { unix, offset, zone: &zone })
    });
    setup.variables.define("date_gmt", |r, out| {
        let unix = r.event_loop.handle.wall().secs;
        date(r, out, Moment { unix, offset: 0, zone: "GMT" })
    });
}

fn zone(unix: i64) -> String {
    weir_sys::localtime::zone(unix)
}

/// The state of a page.
#[derive(Debug, Default)]
pub struct Context {
    /// The last `timefmt`.
    time_format: Option<Vec<u8>>,
    /// The activity that log lines end with.
    doing: &'static str,
}

/// Logs an error in a page.
fn complain(r: &Request, level: Level, text: fmt::Arguments<'_>) {
    let doing = CONTEXT.of(&r.contexts).map_or("", |context| context.doing);
    r.log(level, format_args!("{text}{doing}"));
}

fn date(r: &mut Request, out: &mut Vec<u8>, moment: Moment<'_>) -> bool {
    let usual = b"%A, %d-%b-%Y %H:%M:%S %Z".as_slice();
    let format = CONTEXT.of(&r.contexts).and_then(|context| context.time_format.as_deref());
    let format = format.unwrap_or(usual);
    out.extend_from_slice(&strftime(format, moment));
    true
}

/// The maximum length of the variables and blocks of a response.
const MOST_KEPT: usize = 16 << 20;
/// What a variable or a block takes in addition to its text.
const OVERHEAD: usize = 128;

/// The state that all pages of a response share, including those of subrequests.
#[derive(Default)]
pub struct SsiShared {
    /// Variables: names in lower case, and values.
    variables: HashMap<Vec<u8>, Vec<u8>>,
    /// The total length of the names and values of variables, and of blocks.
    kept: usize,
    blocks: Vec<SsiBlock>,
    /// The captures of the last regular expression.
    groups: Vec<Vec<u8>>,
}

/// Complains that a response has no more room.
fn full(r: &Request, what: &str, name: &[u8]) -> Fault {
    let name = weir_log::Bytes(name);
    complain(r, Level::Error, format_args!("no room for the SSI {what} \"{name}\""));
    Fault::Command
}

/// Sets a variable of the page.
fn set(r: &mut Request, name: &[u8], value: Vec<u8>) -> Result<(), Fault> {
    let has_room = shared(r).borrow_mut().set(name, value);
    if has_room { Ok(()) } else { Err(full(r, "variable", name)) }
}

/// The shared state of the request's response.
fn shared(r: &mut Request) -> Rc<RefCell<SsiShared>> {
    let family = r.family();
    let mut contexts = family.contexts.borrow_mut();
    SHARED.or_insert_with(&mut contexts, Rc::default).clone()
}

/// A `block`: output that may replace an `include`.
#[derive(Default)]
struct SsiBlock {
    name: Vec<u8>,
    /// The output so far. Includes share it.
    body: Vec<Bytes>,
    /// The output since the last include. Pieces may be short, so they are joined.
    tail: Vec<u8>,
}

impl SsiBlock {
    fn shared(&mut self) -> Vec<Bytes> {
        if !self.tail.is_empty() {
            self.body.push(std::mem::take(&mut self.tail).into());
        }
        self.body.clone()
    }
}

impl SsiShared {
    fn get(&self, name: &[u8]) -> Option<&[u8]> {
        if let [digit @ b'0'..=b'9'] = name
            && let Some(group) = self.groups.get(usize::from(digit - b'0'))
        {
            return Some(group);
        }
        self.variables.get(&name.to_ascii_lowercase()).map(Vec::as_slice)
    }

    /// Sets a variable. False, without a change, if the total length would be too large.
    fn set(&mut self, name: &[u8], value: Vec<u8>) -> bool {
        let name = name.to_ascii_lowercase();
        let size = |value: &Vec<u8>| name.len() + value.len() + OVERHEAD;
        let before = self.variables.get(&name).map_or(0, size);
        let kept = self.kept - before + size(&value);
        if kept > MOST_KEPT {
            return false;
        }
        self.kept = kept;
        self.variables.insert(name, value);
        true
    }

    /// Begins a block. False, without one, if the total length would be too large.
    fn begin_block(&mut self, name: &[u8]) -> bool {
        let has_room = self.take_room(name.len() + OVERHEAD);
        if has_room {
            self.blocks.push(SsiBlock { name: name.to_vec(), ..SsiBlock::default() });
        }
        has_room
    }

    /// Appends to the block that was begun last. False, without a change, if the total length would
    /// be too large.
    fn extend_block(&mut self, text: &[u8]) -> bool {
        let has_room = self.take_room(text.len());
        if has_room && let Some(block) = self.blocks.last_mut() {
            block.tail.extend_from_slice(text);
        }
        has_room
    }

    fn take_room(&mut self, size: usize) -> bool {
        let kept = self.kept + size;
        let has_room = kept <= MOST_KEPT;
        if has_room {
            self.kept = kept;
        }
        has_room
    }
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).on
}

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if r.response.content_length == Some(0) || !conf.types.matches(&r.response.content_type) {
        return Ok(());
    }
    let doing = match (&r.contexts.upstream.current, r.response.allow_ranges) {
        // As in nginx: ranges are allowed only for files.
        (_, true) => " while sending response to client",
        (Some(_), false) => " while sending to client",
        (None, false) => "",
    };
    CONTEXT.or_insert_with(&mut r.contexts, Context::default).doing = doing;
    if r.is_main() {
        r.response.expect_changes();
        if conf.last_modified {
            r.response.weaken_etag();
        } else {
            r.response.clear_last_modified();
            r.response.etag = None;
        }
    }
    let shared = shared(r);
    r.add_body_filter(Box::new(Ssi { page: SsiPage::new(conf, shared) }));
    Ok(())
}

struct Ssi {
    page: SsiPage,
}

impl BodyFilter for Ssi {
    fn module(&self) -> &'static str {
        "ssi_filter"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, mut input: Chain, _: bool) -> Filtered<'a> {
        let ends = r.output.filters.ends_body();
        Filtered::Later(Boxed::new(move || async move {
            let mut out = Chain::new();
            while let Some(segment) = input.pop() {
                self.page.read(r, into_bytes(segment), &mut out).await?;
            }
            if ends {
                self.page.end(r, &mut out);
            }
            Ok(out)
        }))
    }
}
