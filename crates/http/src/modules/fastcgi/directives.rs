//! The directives of `fastcgi`.

use std::sync::Arc;

use weir_conf::Directive as Line;

use super::CONTENT;
use super::Conf;
use super::split::Split;
use crate::config::scope::{Directive, Scope};
use crate::config::table::table;
use crate::modules::fastcgi::CONF;
use crate::upstream::pass::{self, Pass};
use crate::upstream::passing::upstream_directives;

/// All directives of the module. The request's method is a parameter, so
/// `fastcgi_cache_convert_head` is left out.
pub const DIRECTIVES: &[Directive] = upstream_directives!(
    CONF, "fastcgi_": OWN;
    passing, store, cache without("cache_convert_head"), params
);

const OWN: &[Directive] = table! { "fastcgi_", settings:
    "pass": once(|s, d| {
        let to = Pass::read(s, d, None)?;
        pass::handle(s, CONTENT.with(to));
        Ok(())
    }), "The FastCGI server, or group of servers, that requests are passed to.";
    "index": value(index, |d| Ok(d.args.first().map(|w| w.bytes.clone()).unwrap_or_default())),
        "The file name that is appended to a script name with a slash at its end, in `$fastcgi_script_name`.";
    "split_path_info": line(|s, d| {
        settings(s).split = Split::read(s, d)?.map(Arc::new);
        Ok(())
    }), "A pattern with the captures `$fastcgi_script_name` and `$fastcgi_path_info`.";
    "catch_stderr": list(catch_stderr, |_, d| Ok(texts(d))),
        "A text in a server's error output that makes its response invalid.";
    "keep_conn": value(keep_conn, Line::flag),
        "Whether servers are asked to keep connections open after a response.";
};

fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Conf {
    CONF.change(&mut s.location)
}

fn texts(d: &Line) -> Vec<Vec<u8>> {
    d.args.iter().map(|word| word.bytes.clone()).collect()
}
