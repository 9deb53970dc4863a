//! The content handler of a location: what answers there, with all that it needs to know.
//!
//! Handler and settings are one value. A block takes both from the block around it or none, so that no handler runs with
//! the settings of a block that did not name it. What holds for other handlers too (timeouts, `proxy_set_header`) is
//! inherited as settings of the modules.

use std::mem::discriminant;

use crate::modules::{
    api, cache_purge, dashboard, echo, empty_gif, fastcgi, flv, grpc, lua, memcached, mp4, proxy,
    scgi, stub_status, tunnel, uwsgi,
};
use crate::phases::Answer;
use crate::request::Request;
use crate::site::location::Kind;
use crate::upstream::http::To;
use crate::upstream::pass::Pass;

/// The settings that are in force do not name the handler that is to answer.
#[derive(Debug, PartialEq, Eq)]
pub struct LacksSettings;

/// A content handler that a directive names.
#[derive(Debug, Clone)]
pub enum Content {
    /// `weir_api`
    Api(api::Api),
    /// `proxy_cache_purge ZONE KEY` and kin
    CachePurge(cache_purge::Purge),
    /// `weir_dashboard`
    Dashboard(dashboard::Page),
    /// `echo` and kin
    Echo(echo::Acts),
    /// `empty_gif`
    EmptyGif,
    /// `fastcgi_pass`
    Fastcgi(Pass),
    /// `flv`
    Flv,
    /// `grpc_pass`
    Grpc(To),
    /// `content_by_lua`
    Lua(lua::Script),
    /// `memcached_pass`
    Memcached(memcached::Pass),
    /// `mp4`
    Mp4,
    /// `proxy_pass`
    Proxy(proxy::Pass),
    /// `scgi_pass`
    Scgi(Pass),
    /// `stub_status`
    StubStatus,
    /// `tunnel_pass`
    Tunnel(Pass),
    /// `uwsgi_pass`
    Uwsgi(uwsgi::To),
    /// `weir_status`
    WeirStatus(stub_status::Form),
}

impl Content {
    /// Whether a block of this kind keeps the handler of the block around it.
    ///
    /// `if` keeps it. `limit_except` keeps those that nginx keeps there, and weir's own; with the others a request of a
    /// limited method is for the files of the location. A location inside names its own handler.
    pub fn is_kept_in(&self, block: &Kind) -> bool {
        match block {
            Kind::If => true,
            Kind::LimitExcept => match self {
                Content::Api(_)
                | Content::Dashboard(_)
                | Content::Fastcgi(_)
                | Content::Grpc(_)
                | Content::Proxy(_)
                | Content::Scgi(_)
                | Content::Tunnel(_)
                | Content::Uwsgi(_)
                | Content::WeirStatus(_) => true,
                Content::CachePurge(_)
                | Content::Echo(_)
                | Content::EmptyGif
                | Content::Flv
                | Content::Lua(_)
                | Content::Memcached(_)
                | Content::Mp4
                | Content::StubStatus => false,
            },
            Kind::Server | Kind::Exact | Kind::Prefix { .. } | Kind::Regex(_) | Kind::Named => {
                false
            }
        }
    }

    /// What answers behind several `if`s that hold. As in nginx, the last one that names a handler decides which it is,
    /// and the last one of all, whose handler is `own`, which settings it has. So a handler answers only where both
    /// name the same directive. `echo` and Lua leave the request to the files without an act or a script.
    pub fn after_ifs<'a>(
        chosen: Option<&'a Content>,
        own: Option<&'a Content>,
    ) -> Result<Option<&'a Content>, LacksSettings> {
        let Some(chosen) = chosen else { return Ok(own) };
        if own.is_some_and(|own| discriminant(own) == discriminant(chosen)) {
            return Ok(own);
        }
        match chosen {
            Content::Echo(_) | Content::Lua(_) => Ok(None),
            _ => Err(LacksSettings),
        }
    }

    /// The module that the handler belongs to.
    pub fn module(&self) -> &'static str {
        match self {
            Content::Api(_) => "api",
            Content::CachePurge(_) => "cache_purge",
            Content::Dashboard(_) => "dashboard",
            Content::Echo(_) => "echo",
            Content::EmptyGif => "empty_gif",
            Content::Fastcgi(_) => "fastcgi",
            Content::Flv => "flv",
            Content::Grpc(_) => "grpc",
            Content::Lua(_) => "lua",
            Content::Memcached(_) => "memcached",
            Content::Mp4 => "mp4",
            Content::Proxy(_) => "proxy",
            Content::Scgi(_) => "scgi",
            Content::StubStatus | Content::WeirStatus(_) => "stub_status",
            Content::Tunnel(_) => "tunnel",
            Content::Uwsgi(_) => "uwsgi",
        }
    }

    /// Runs the handler.
    #[expect(clippy::disallowed_methods, reason = "this is the content phase")]
    pub fn answer<'a>(&'static self, r: &'a mut Request) -> Answer<'a> {
        match self {
            Content::Api(api) => Answer::Later(api::handler(r, api)),
            Content::CachePurge(purge) => Answer::Later(cache_purge::handler(r, purge)),
            Content::Dashboard(page) => Answer::Later(dashboard::handler(r, page)),
            Content::Echo(acts) => Answer::Later(echo::handler(r, acts)),
            Content::EmptyGif => Answer::Now(empty_gif::handler(r)),
            Content::Fastcgi(pass) => Answer::Later(fastcgi::handler(r, pass)),
            Content::Flv => Answer::Later(flv::handler(r)),
            Content::Grpc(to) => Answer::Later(grpc::handler(r, to)),
            Content::Lua(script) => Answer::Later(lua::content(r, script)),
            Content::Memcached(pass) => Answer::Later(memcached::handler(r, pass)),
            Content::Mp4 => Answer::Later(mp4::handler(r)),
            Content::Proxy(pass) => Answer::Later(proxy::handler(r, pass)),
            Content::Scgi(pass) => Answer::Later(scgi::handler(r, pass)),
            Content::StubStatus => Answer::Now(stub_status::handler(r)),
            Content::Tunnel(pass) => Answer::Later(tunnel::handler(r, pass)),
            Content::Uwsgi(to) => Answer::Later(uwsgi::handler(r, to)),
            Content::WeirStatus(form) => Answer::Now(form.answer(r)),
        }
    }
}
