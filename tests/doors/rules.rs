//! What keeps which client out.

/// When a rule is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// As soon as the location is known.
    Location,
    Preaccess,
    /// Not in subrequests, which their request answers for.
    Access,
    /// Where the name of a file is known.
    File,
    /// Where a body is read: a handler that reads none lets the request pass.
    Body,
}

/// A rule, the clients that it refuses and those that it allows.
pub struct Rule {
    pub name: &'static str,
    /// What stands in the guarded location.
    pub text: &'static str,
    pub phase: Phase,
    pub refused: &'static [Who],
    pub allowed: &'static [Who],
}

/// What a request is by which it is told apart.
#[derive(Debug)]
pub struct Who {
    /// Header lines; `%N` is a number that no other request has.
    pub headers: &'static [(&'static str, &'static str)],
    pub body: &'static str,
    /// The body's length is not told before.
    pub chunked: bool,
    /// It has asked before.
    pub again: bool,
    pub file: &'static str,
}

pub const ANYBODY: Who =
    Who { headers: &[], body: "", chunked: false, again: false, file: "secret.txt" };

pub const fn with(headers: &'static [(&'static str, &'static str)]) -> Who {
    Who { headers, ..ANYBODY }
}

const ADDRESS: &[(&str, &str)] = &[("X-Real-IP", "10.0.0.1")];
const PASSWORD: &[(&str, &str)] =
    &[("Authorization", "Basic dTpw"), ("Proxy-Authorization", "Basic dTpw")];
const WRONG: &[(&str, &str)] =
    &[("Authorization", "Basic dTp3"), ("Proxy-Authorization", "Basic dTp3")];

pub const RULES: &[Rule] = &[
    Rule {
        name: "disable_symlinks",
        text: "disable_symlinks on from=%%DIR%%;",
        phase: Phase::File,
        refused: &[
            Who { file: "link.txt", ..ANYBODY },
            Who { file: "round/secret.txt", ..ANYBODY },
        ],
        allowed: &[ANYBODY],
    },
    Rule {
        name: "root",
        text: "",
        phase: Phase::File,
        refused: &[Who { file: "../beside.txt", ..ANYBODY }],
        allowed: &[ANYBODY],
    },
    Rule {
        name: "internal",
        text: "internal;",
        phase: Phase::Location,
        refused: &[ANYBODY],
        allowed: &[],
    },
    Rule {
        name: "access",
        text: "allow 10.0.0.1; deny all;",
        phase: Phase::Access,
        refused: &[ANYBODY, with(&[("X-Real-IP", "10.0.0.2")])],
        allowed: &[with(ADDRESS)],
    },
    Rule {
        name: "auth_basic",
        text: "auth_basic inside; auth_basic_user_file %%DIR%%/users;",
        phase: Phase::Access,
        refused: &[ANYBODY, with(WRONG)],
        allowed: &[with(PASSWORD)],
    },
    Rule {
        name: "auth_request",
        text: "auth_request /asked;",
        phase: Phase::Access,
        refused: &[ANYBODY],
        allowed: &[with(&[("X-Ok", "1")])],
    },
    Rule {
        name: "satisfy",
        text: "satisfy any; allow 10.0.0.1; deny all; auth_request /asked;",
        phase: Phase::Access,
        refused: &[ANYBODY],
        allowed: &[with(ADDRESS), with(&[("X-Ok", "1")])],
    },
    Rule {
        name: "limit_req",
        text: "limit_req zone=rate;",
        phase: Phase::Preaccess,
        refused: &[Who { again: true, ..with(&[("X-K", "%N")]) }],
        allowed: &[with(&[("X-K", "%N")])],
    },
    Rule {
        name: "limit_conn",
        text: "limit_conn held 1;",
        phase: Phase::Preaccess,
        refused: &[with(&[("X-C", "held")])],
        allowed: &[with(&[("X-C", "%N")])],
    },
    Rule {
        name: "client_max_body_size",
        text: "client_max_body_size 4;",
        phase: Phase::Location,
        refused: &[Who { body: "0123456789", ..ANYBODY }],
        allowed: &[Who { body: "0123", ..ANYBODY }],
    },
    Rule {
        name: "client_max_body_size in pieces",
        text: "client_max_body_size 4;",
        phase: Phase::Body,
        refused: &[Who { body: "0123456789", chunked: true, ..ANYBODY }],
        allowed: &[Who { body: "0123", chunked: true, ..ANYBODY }],
    },
    Rule {
        name: "limit_except",
        text: "limit_except POST { allow 10.0.0.1; deny all; }",
        phase: Phase::Access,
        refused: &[ANYBODY],
        allowed: &[with(ADDRESS)],
    },
];

/// A rule that the nginx beside need not have.
pub const LUA: &Rule = &Rule {
    name: "access_by_lua",
    text: "access_by_lua_block { if not ngx.var.http_x_ok then ngx.exit(403) end }",
    phase: Phase::Access,
    refused: &[ANYBODY],
    allowed: &[with(&[("X-Ok", "1")])],
};
