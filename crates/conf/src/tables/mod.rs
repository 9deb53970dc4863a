//! Every directive that weir knows, one file per family.
//!
//! A row has the name, the contexts, the arguments, whether the directive may stand in a block more
//! than once, and its effect while weir has not built it. Names, contexts and numbers of arguments
//! are nginx's. The last column is weir's: a directive refuses the start if ignoring it would
//! change which clients get in or what they get. The switch of a feature refuses, so directives
//! that only tune the feature warn.

use crate::context::Contexts;
use crate::known::{Args, ArgumentKind, DirectiveForm, Effect, KnownDirective};

use Effect::{Emerg, EmergUnless, Warn};
use words::*;

/// Makes one list of the rows of several modules.
macro_rules! modules {
    ($($module:literal {
        $($name:literal, $contexts:expr, $args:expr, $times:expr, $effect:expr;)*
    })*) => {
        pub(super) const DIRECTIVES: &[KnownDirective] = &[$($(
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
pub(crate) static FAMILIES: [&[KnownDirective]; 17] = [
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

const MAIN: Contexts = Contexts::MAIN;
const EVENTS: Contexts = Contexts::EVENTS;
const HTTP: Contexts = Contexts::HTTP;
const SERVER: Contexts = Contexts::SERVER;
const LOCATION: Contexts = Contexts::LOCATION;
const UPSTREAM: Contexts = Contexts::UPSTREAM;
const STREAM: Contexts = Contexts::STREAM;
const STREAM_SERVER: Contexts = Contexts::STREAM_SERVER;
const STREAM_UPSTREAM: Contexts = Contexts::STREAM_UPSTREAM;
const MAIL: Contexts = Contexts::MAIL;
const MAIL_SERVER: Contexts = Contexts::MAIL_SERVER;
const ANY: Contexts = Contexts::ANY;

const HTTP_SERVER: Contexts = HTTP.or(SERVER);
const SERVER_LOCATION: Contexts = SERVER.or(LOCATION);
/// `http`, `server` and `location`, the most common of all.
const HSL: Contexts = HTTP_SERVER.or(LOCATION);
const HSL_IF: Contexts = HSL.or(Contexts::IF_LOCATION);
const HSL_LIMIT: Contexts = HSL.or(Contexts::LIMIT_EXCEPT);
const HSL_IF_LIMIT: Contexts = HSL_IF.or(Contexts::LIMIT_EXCEPT);
const LOCATION_IF: Contexts = LOCATION.or(Contexts::IF_LOCATION);
const LOCATION_LIMIT: Contexts = LOCATION.or(Contexts::LIMIT_EXCEPT);
const LOC_IF_LIMIT: Contexts = LOCATION_IF.or(Contexts::LIMIT_EXCEPT);
const SERVER_LOCATION_IF: Contexts = SERVER.or(LOCATION_IF);
/// Where the rewrite module works.
const REWRITE: Contexts = SERVER_LOCATION_IF.or(Contexts::IF_SERVER);
const HTTP_REWRITE: Contexts = HTTP.or(REWRITE);
const STREAM_BOTH: Contexts = STREAM.or(STREAM_SERVER);
const MAIL_BOTH: Contexts = MAIL.or(MAIL_SERVER);

/// Any number of arguments.
const MORE: u8 = u8::MAX;
const NO_ARGS: (Args, DirectiveForm) = args(0, 0);
const ONE: (Args, DirectiveForm) = args(1, 1);
const TWO: (Args, DirectiveForm) = args(2, 2);
const FLAG: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::Flag);
const NUMBER: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::Number { low: 0, high: u64::MAX });
const SIZE: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::Size);
/// A size per second, or a variable that holds one.
const RATE: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::SizeOrVariable);
const OFFSET: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::Offset);
const MSEC: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::Msec);
const SEC: (Args, DirectiveForm) = typed(1, 1, ArgumentKind::Sec);
const BUFFERS: (Args, DirectiveForm) = typed(2, 2, ArgumentKind::Buffers);

/// `off` asks for what weir does anyway.
const UNLESS_OFF: Effect = EmergUnless("off");
/// `on` asks for what weir does anyway.
const UNLESS_ON: Effect = EmergUnless("on");
const UNLESS_ALL: Effect = EmergUnless("all");

/// Only once in a block: the second one is a duplicate.
const ONCE: bool = true;
/// More than once in a block, or under conditions that only its module can check.
const MANY: bool = false;

const fn typed(min: u8, max: u8, value: ArgumentKind) -> (Args, DirectiveForm) {
    (Args { min, max, value }, DirectiveForm::Statement)
}

const fn args(min: u8, max: u8) -> (Args, DirectiveForm) {
    typed(min, max, ArgumentKind::Any)
}

const fn within(low: u64, high: u64) -> (Args, DirectiveForm) {
    typed(1, 1, ArgumentKind::Number { low, high })
}

const fn one_of(words: &'static [&'static str]) -> (Args, DirectiveForm) {
    typed(1, 1, ArgumentKind::OneOf(words))
}

const fn any_of(words: &'static [&'static str]) -> (Args, DirectiveForm) {
    typed(1, MORE, ArgumentKind::AnyOf(words))
}

const fn up_to(max: u8, words: &'static [&'static str]) -> (Args, DirectiveForm) {
    typed(1, max, ArgumentKind::AnyOf(words))
}

const fn block(min: u8, max: u8) -> (Args, DirectiveForm) {
    (Args { min, max, value: ArgumentKind::Any }, DirectiveForm::Block)
}

const fn lines(min: u8, max: u8) -> (Args, DirectiveForm) {
    (Args { min, max, value: ArgumentKind::Any }, DirectiveForm::Lines)
}

const fn raw(count: u8) -> (Args, DirectiveForm) {
    (Args { min: count, max: count, value: ArgumentKind::Any }, DirectiveForm::Raw)
}

const fn row(
    module: &'static str,
    name: &'static str,
    contexts: Contexts,
    (args, shape): (Args, DirectiveForm),
    once: bool,
    effect: Effect,
) -> KnownDirective {
    KnownDirective { name, module, contexts, args, shape, once, effect }
}
