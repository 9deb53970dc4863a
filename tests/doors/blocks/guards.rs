//! The rules that refuse requests, when each is asked, and whom it refuses.

use super::handlers::{API, PURGED};
use crate::rules::{ANYBODY, RULES, Who, with};

/// When a rule is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A location is found.
    Found,
    /// The code of its location runs.
    Code,
    /// Behind that code.
    Script,
    Preaccess,
    /// Not in subrequests.
    Access,
    /// The handler of this name asks.
    Handler(&'static str),
}

/// A rule, and with which status it refuses.
#[derive(Clone, Copy)]
pub struct Guard {
    pub name: &'static str,
    pub text: &'static str,
    pub when: When,
    pub status: u16,
    /// Whether it may stand in `if`, and in `limit_except`.
    pub places: (bool, bool),
    pub refused: &'static [Who],
    pub allowed: &'static [Who],
    pub is_added: bool,
}

/// One of `RULES`.
fn known(name: &str, when: When, status: u16) -> Guard {
    let rule = RULES.iter().find(|rule| rule.name == name).expect("a rule of this name");
    let places = (false, matches!(name, "access" | "auth_basic"));
    let (refused, allowed) = (rule.refused, rule.allowed);
    Guard {
        name: rule.name,
        text: rule.text,
        when,
        status,
        places,
        refused,
        allowed,
        is_added: false,
    }
}

const OK: &[Who] = &[with(&[("X-Ok", "1")])];
pub const TOKEN: (&str, &str) = ("Authorization", "Bearer 0123456789abcdef");

const fn script(name: &'static str, text: &'static str, when: When) -> Guard {
    let (refused, allowed) = (&[ANYBODY], OK);
    Guard { name, text, when, status: 403, places: (true, false), refused, allowed, is_added: true }
}

const fn code(
    name: &'static str,
    text: &'static str,
    refused: &'static [Who],
    allowed: &'static [Who],
) -> Guard {
    let (when, places) = (When::Code, (false, false));
    Guard { name, text, when, status: 403, places, refused, allowed, is_added: false }
}

pub fn all() -> Vec<Guard> {
    let known = [
        known("internal", When::Found, 404),
        known("access", When::Access, 403),
        known("auth_basic", When::Access, 401),
        known("auth_request", When::Access, 403),
        known("satisfy", When::Access, 403),
        known("limit_req", When::Preaccess, 503),
        known("limit_conn", When::Preaccess, 503),
    ];
    [&known, GUARDS].concat()
}

/// The rules that are not among `RULES`.
const GUARDS: &[Guard] = &[
    script(
        "access_by_lua",
        "access_by_lua_block { if not ngx.var.http_x_ok then ngx.exit(403) end }",
        When::Access,
    ),
    script(
        "access_by_lua that answers",
        "access_by_lua_block { if not ngx.var.http_x_ok then ngx.status = 403 ngx.say('no') end }",
        When::Access,
    ),
    script(
        "rewrite_by_lua",
        "rewrite_by_lua_block { if not ngx.var.http_x_ok then ngx.exit(403) end }",
        When::Script,
    ),
    script(
        "rewrite_by_lua that answers",
        "rewrite_by_lua_block { if not ngx.var.http_x_ok then ngx.status = 403 ngx.say('no') end }",
        When::Script,
    ),
    code(
        "secure_link",
        "secure_link $http_x_link; secure_link_md5 secret; if ($secure_link = '') { return 403; }",
        &[ANYBODY, with(&[("X-Link", "Xr4ilOzQ4PCOq3aQ0qbuaA")])],
        &[with(&[("X-Link", "Xr4ilOzQ4PCOq3aQ0qbuaQ")])],
    ),
    code(
        "valid_referers",
        "valid_referers a.test; if ($invalid_referer) { return 403; }",
        &[ANYBODY, with(&[("Referer", "http://b.test/")])],
        &[with(&[("Referer", "http://a.test/")])],
    ),
    Guard {
        name: "token",
        text: "",
        when: When::Handler(API),
        status: 401,
        places: (false, false),
        refused: &[ANYBODY, with(&[("Authorization", "Bearer 0123456789abcdeg")])],
        allowed: &[with(&[TOKEN])],
        is_added: true,
    },
    Guard {
        name: "purge from",
        text: "",
        when: When::Handler(PURGED),
        status: 403,
        places: (false, false),
        refused: &[ANYBODY, with(&[("X-Real-IP", "10.0.0.2")])],
        allowed: &[with(&[("X-Real-IP", "10.0.0.1")])],
        is_added: true,
    },
];
