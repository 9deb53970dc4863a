//! Every directive that weir knows, one file per family.
//!
//! A row says: name, contexts, arguments, whether it may stand in a block more than once, and what
//! happens while weir has not built it. Names, contexts and numbers of arguments are nginx's. The
//! last column is a judgement: a directive refuses the start when ignoring it would change who gets
//! in or what clients get; the switch of a feature refuses, so what only shapes that feature warns.

use crate::context::Context;
use crate::known::{Args, Effect, Known, Shape, Value};

use Effect::{Emerg, EmergUnless, Warn};
use words::*;

/// Rows of several modules become one list.
macro_rules! modules {
    ($($module:literal {
        $($name:literal, $contexts:expr, $args:expr, $times:expr, $effect:expr;)*
    })*) => {
        pub(super) const DIRECTIVES: &[Known] = &[$($(
            row($module, $name, $contexts, $args, $times, $effect),
        )*)*];
    };
}

mod core;
mod http_access;
mod http_content;
mod http_core;
mod http_fastcgi;
mod http_filter;
mod http_grpc;
mod http_proxy;
mod http_rewrite;
mod http_scgi;
mod http_tls;
mod http_upstream;
mod http_uwsgi;
mod mail;
mod stream;
mod third_party;
mod weir;
mod words;

/// All families, in the order of the documentation.
pub(crate) static FAMILIES: [&[Known]; 17] = [
    weir::DIRECTIVES,
    core::DIRECTIVES,
    http_core::DIRECTIVES,
    http_rewrite::DIRECTIVES,
    http_access::DIRECTIVES,
    http_content::DIRECTIVES,
    http_filter::DIRECTIVES,
    http_tls::DIRECTIVES,
    http_upstream::DIRECTIVES,
    http_proxy::DIRECTIVES,
    http_fastcgi::DIRECTIVES,
    http_uwsgi::DIRECTIVES,
    http_scgi::DIRECTIVES,
    http_grpc::DIRECTIVES,
    third_party::DIRECTIVES,
    stream::DIRECTIVES,
    mail::DIRECTIVES,
];

const MAIN: Context = Context::MAIN;
const EVENTS: Context = Context::EVENTS;
const HTTP: Context = Context::HTTP;
const SERVER: Context = Context::SERVER;
const LOCATION: Context = Context::LOCATION;
const UPSTREAM: Context = Context::UPSTREAM;
const STREAM: Context = Context::STREAM;
const STREAM_SERVER: Context = Context::STREAM_SERVER;
const STREAM_UPSTREAM: Context = Context::STREAM_UPSTREAM;
const MAIL: Context = Context::MAIL;
const MAIL_SERVER: Context = Context::MAIL_SERVER;
const ANY: Context = Context::ANY;

const HTTP_SERVER: Context = HTTP.or(SERVER);
const SERVER_LOCATION: Context = SERVER.or(LOCATION);
/// `http`, `server` and `location`, the most common of all.
const HSL: Context = HTTP_SERVER.or(LOCATION);
const HSL_IF: Context = HSL.or(Context::IF_LOCATION);
const HSL_LIMIT: Context = HSL.or(Context::LIMIT_EXCEPT);
const HSL_IF_LIMIT: Context = HSL_IF.or(Context::LIMIT_EXCEPT);
const LOCATION_IF: Context = LOCATION.or(Context::IF_LOCATION);
const LOCATION_LIMIT: Context = LOCATION.or(Context::LIMIT_EXCEPT);
const LOC_IF_LIMIT: Context = LOCATION_IF.or(Context::LIMIT_EXCEPT);
const SERVER_LOCATION_IF: Context = SERVER.or(LOCATION_IF);
/// Where the rewrite module works.
const REWRITE: Context = SERVER_LOCATION_IF.or(Context::IF_SERVER);
const HTTP_REWRITE: Context = HTTP.or(REWRITE);
const STREAM_BOTH: Context = STREAM.or(STREAM_SERVER);
const MAIL_BOTH: Context = MAIL.or(MAIL_SERVER);

/// Any number of arguments.
const MORE: u8 = u8::MAX;
const NO_ARGS: (Args, Shape) = args(0, 0);
const ONE: (Args, Shape) = args(1, 1);
const TWO: (Args, Shape) = args(2, 2);
const FLAG: (Args, Shape) = typed(1, 1, Value::Flag);
const NUMBER: (Args, Shape) = typed(1, 1, Value::Number { low: 0, high: u64::MAX });
const SIZE: (Args, Shape) = typed(1, 1, Value::Size);
/// Rates are sizes a second, or variables that hold one.
const RATE: (Args, Shape) = typed(1, 1, Value::SizeOrVariable);
const OFFSET: (Args, Shape) = typed(1, 1, Value::Offset);
const MSEC: (Args, Shape) = typed(1, 1, Value::Msec);
const SEC: (Args, Shape) = typed(1, 1, Value::Sec);
const BUFFERS: (Args, Shape) = typed(2, 2, Value::Buffers);

/// What weir does anyway is what `off` asks for.
const UNLESS_OFF: Effect = EmergUnless("off");
/// What weir does anyway is what `on` asks for.
const UNLESS_ON: Effect = EmergUnless("on");
const UNLESS_ALL: Effect = EmergUnless("all");

/// Only once in a block: the second one is a duplicate.
const ONCE: bool = true;
/// More than once in a block, or under conditions that only its module can judge.
const MANY: bool = false;

const fn typed(min: u8, max: u8, value: Value) -> (Args, Shape) {
    (Args { min, max, value }, Shape::Statement)
}

const fn args(min: u8, max: u8) -> (Args, Shape) {
    typed(min, max, Value::Any)
}

const fn within(low: u64, high: u64) -> (Args, Shape) {
    typed(1, 1, Value::Number { low, high })
}

const fn one_of(words: &'static [&'static str]) -> (Args, Shape) {
    typed(1, 1, Value::OneOf(words))
}

const fn any_of(words: &'static [&'static str]) -> (Args, Shape) {
    typed(1, MORE, Value::AnyOf(words))
}

const fn up_to(max: u8, words: &'static [&'static str]) -> (Args, Shape) {
    typed(1, max, Value::AnyOf(words))
}

const fn block(min: u8, max: u8) -> (Args, Shape) {
    (Args { min, max, value: Value::Any }, Shape::Block)
}

const fn lines(min: u8, max: u8) -> (Args, Shape) {
    (Args { min, max, value: Value::Any }, Shape::Lines)
}

const fn raw(count: u8) -> (Args, Shape) {
    (Args { min: count, max: count, value: Value::Any }, Shape::Raw)
}

const fn row(
    module: &'static str,
    name: &'static str,
    contexts: Context,
    (args, shape): (Args, Shape),
    once: bool,
    effect: Effect,
) -> Known {
    Known { name, module, contexts, args, shape, once, effect }
}
