//! The blocks in which a rule and a handler stand, and the ways on which a request comes there.

/// Where rule and handler stand.
pub struct Block {
    pub name: &'static str,
    pub text: &'static str,
    /// Behind `/ID/`.
    pub inner: &'static str,
    /// The code of the location with the rule, and with the handler, runs.
    pub runs: (bool, bool),
    /// `limit_except` decides whether the handler is kept.
    pub limits: bool,
    /// The methods that `limit_except` has nothing to do with, where it refuses.
    pub excepts: &'static [&'static str],
    /// The rule, and the handler, stand in a block that not all of them may stand in.
    pub rule_in: Option<Inside>,
    pub handler_in: Option<Inside>,
    /// No request comes here as it was made.
    pub is_named: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Inside {
    If,
    LimitExcept,
}

impl Inside {
    pub fn allows(self, (by_if, by_limit): (bool, bool)) -> bool {
        match self {
            Inside::If => by_if,
            Inside::LimitExcept => by_limit,
        }
    }
}

const PLAIN: Block = Block {
    name: "location",
    text: "location /ID/ { RULE HANDLER }",
    inner: "",
    runs: (true, true),
    limits: false,
    excepts: &[],
    rule_in: None,
    handler_in: None,
    is_named: false,
};

const fn block(name: &'static str, text: &'static str) -> Block {
    Block { name, text, ..PLAIN }
}

const fn nested(name: &'static str, text: &'static str) -> Block {
    Block { name, text, inner: "in/", runs: (false, true), ..PLAIN }
}

const fn limited(name: &'static str, text: &'static str) -> Block {
    Block { name, text, runs: (false, false), limits: true, ..PLAIN }
}

pub const BLOCKS: &[Block] = &[
    PLAIN,
    nested("location in a location", "location /ID/ { RULE location /ID/in/ { HANDLER } }"),
    nested("pattern in a location", "location /ID/ { RULE location ~ in/ { HANDLER } }"),
    Block {
        is_named: true,
        ..block(
            "named location",
            "location /ID/ { try_files /none @ID; } location @ID { RULE HANDLER }",
        )
    },
    block("if of the server", "if ($uri ~ ^/ID/) { set $seen 1; } location /ID/ { RULE HANDLER }"),
    block("if", "location /ID/ { RULE HANDLER if ($uri) { add_header X-If 1; } }"),
    block("if before", "location /ID/ { if ($uri) { add_header X-If 1; } RULE HANDLER }"),
    block(
        "two ifs",
        "location /ID/ { if ($uri) { expires 1s; } RULE HANDLER if ($uri) { add_header X-If 1; } }",
    ),
    Block {
        handler_in: Some(Inside::If),
        ..block("handler of an if", "location /ID/ { RULE if ($uri) { HANDLER } }")
    },
    Block {
        rule_in: Some(Inside::If),
        ..block("rule of an if", "location /ID/ { if ($uri) { RULE } HANDLER }")
    },
    limited("limit_except", "location /ID/ { RULE HANDLER limit_except LOCK { access_log off; } }"),
    Block {
        rule_in: Some(Inside::LimitExcept),
        ..limited("rule of limit_except", "location /ID/ { HANDLER limit_except LOCK { RULE } }")
    },
    Block {
        handler_in: Some(Inside::LimitExcept),
        limits: false,
        ..limited("handler of limit_except", "location /ID/ { RULE limit_except LOCK { HANDLER } }")
    },
    Block {
        excepts: &["GET", "PUT"],
        ..block(
            "if beside limit_except, not limited",
            "location /ID/ { RULE HANDLER if ($uri) { add_header X-If 1; } limit_except GET PUT { deny all; } }",
        )
    },
    limited(
        "if beside limit_except, limited",
        "location /ID/ { RULE HANDLER if ($uri) { add_header X-If 1; } limit_except LOCK { access_log off; } }",
    ),
    nested(
        "if in a location in a location",
        "location /ID/ { RULE location /ID/in/ { HANDLER if ($uri) { add_header X-If 1; } } }",
    ),
    Block {
        runs: (false, false),
        limits: true,
        ..nested(
            "limit_except in a location in a location",
            "location /ID/ { RULE location /ID/in/ { HANDLER limit_except LOCK { access_log off; } } }",
        )
    },
];

/// How a request comes there: `TO` is the path.
pub struct Way {
    pub name: &'static str,
    pub text: &'static str,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Direct,
    /// By a redirect inside the server.
    Inside,
    /// By a subrequest: its body is in the answer.
    Included,
    /// By a subrequest that decides about the request.
    Asked,
    /// By a subrequest of which nothing is seen but that the server behind was asked.
    Unseen,
}

const fn way(name: &'static str, kind: Kind, text: &'static str) -> Way {
    Way { name, text, kind }
}

pub const WAYS: &[Way] = &[
    way("direct", Kind::Direct, ""),
    way("error_page", Kind::Inside, "location = /ID-d { error_page 418 = TO; return 418; }"),
    way("try_files", Kind::Inside, "location = /ID-d { try_files /none TO; }"),
    way("rewrite", Kind::Inside, "rewrite ^/ID-d$ TO last;"),
    way("X-Accel-Redirect", Kind::Inside, "location = /ID-d { proxy_pass HIT/accelTO; }"),
    way("SSI", Kind::Included, "location = /ID-d { ssi on; ssi_types *; alias PAGE; }"),
    way("auth_request", Kind::Asked, "location = /ID-d { auth_request TO; alias OPEN; }"),
    way("mirror", Kind::Unseen, "location = /ID-d { mirror TO; alias OPEN; }"),
];
