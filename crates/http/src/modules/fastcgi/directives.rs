//! The directives of `fastcgi`.

use std::sync::Arc;

use weir_conf::Directive as Line;

use super::CONTENT;
use super::Conf;
use super::split::Split;
use crate::config::scope::{Directive, Scope};
use crate::config::table::{table, together, without};
use crate::modules::fastcgi::CONF;
use crate::upstream::cache::cache_directives;
use crate::upstream::cgi::param_directive;
use crate::upstream::pass::{self, Pass};
use crate::upstream::passing::passing_directives;
use crate::upstream::store::store_directives;

const PASSING: &[Directive] = passing_directives!(CONF, "fastcgi_");
const STORE: &[Directive] = store_directives!(CONF, "fastcgi_");
const CACHE: &[Directive] = cache_directives!(CONF, "fastcgi_");
const PARAM: &[Directive] = param_directive!(CONF, "fastcgi_");
/// What scripts are told of a request's method is a parameter.
const KEPT: [Directive; CACHE.len() - 1] = without(CACHE, "fastcgi_cache_convert_head");
const PASSING_STORE: [Directive; PASSING.len() + STORE.len()] = together(PASSING, STORE);
const PASSING_CACHE: [Directive; PASSING_STORE.len() + KEPT.len()] =
    together(&PASSING_STORE, &KEPT);
const SHARED: [Directive; PASSING_CACHE.len() + PARAM.len()] = together(&PASSING_CACHE, PARAM);

/// All of them.
pub const DIRECTIVES: [Directive; OWN.len() + SHARED.len()] = together(OWN, &SHARED);

const OWN: &[Directive] = table! { "fastcgi_", settings:
    "pass": once(|s, d| {
        let to = Pass::read(s, d, None)?;
        pass::handle(s, CONTENT.with(to));
        Ok(())
    }), "The FastCGI server, or group of servers, that requests are passed to.";
    "index": value(index, |d| Ok(d.args.first().map(|w| w.bytes.clone()).unwrap_or_default())),
        "What is added to a script's name that ends with a slash, in $fastcgi_script_name.";
    "split_path_info": line(|s, d| {
        settings(s).split = Split::read(s, d)?.map(Arc::new);
        Ok(())
    }), "A pattern with the groups $fastcgi_script_name and $fastcgi_path_info.";
    "catch_stderr": list(catch_stderr, |_, d| Ok(texts(d))),
        "A text in a server's messages for the log that makes its answer an invalid one.";
    "keep_conn": value(keep_conn, Line::flag),
        "Whether servers are asked to keep connections open after an answer.";
};

fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Conf {
    CONF.change(&mut s.location)
}

fn texts(d: &Line) -> Vec<Vec<u8>> {
    d.args.iter().map(|word| word.bytes.clone()).collect()
}
