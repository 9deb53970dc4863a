//! The ways to a guarded resource.

/// A way. In its text `ID` is the cell, `RULE` the rule, `FILE` the file that is asked for, `DATA` a directory with it,
/// `OWN` one of the cell's own, and `HIT` a server that answers with the secret and keeps count.
pub struct Entry {
    pub name: &'static str,
    pub text: &'static str,
    /// Method and target.
    pub line: (&'static str, &'static str),
    pub header: Option<(&'static str, &'static str)>,
    pub way: Way,
    pub seen: Seen,
    pub needs: Needs,
}

/// How the guarded location is come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As the request says.
    Direct,
    /// By a redirect inside the server.
    Inside,
    /// By a subrequest.
    Sub,
    /// What is guarded is told before any rule but the location's own is asked.
    Rewrite,
}

/// The sign that a request has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The secret is in the answer.
    Secret,
    /// The server behind was asked.
    Asked,
    /// Something has changed in the cell's directory.
    Changed,
}

/// What not every nginx has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Lua,
    Tunnel,
    /// Modules that are not nginx's own.
    Added,
}

const STATIC: Entry = Entry {
    name: "static",
    text: "location /ID/ { RULE alias DATA/; }",
    line: ("GET", "/ID/FILE"),
    header: None,
    way: Way::Direct,
    seen: Seen::Secret,
    needs: Needs::Nothing,
};

const fn direct(name: &'static str, text: &'static str) -> Entry {
    Entry { name, text, ..STATIC }
}

const fn inside(name: &'static str, text: &'static str) -> Entry {
    Entry { name, text, line: ("GET", "/ID-d"), way: Way::Inside, ..STATIC }
}

const fn sub(name: &'static str, text: &'static str, seen: Seen) -> Entry {
    Entry { name, text, line: ("GET", "/ID-d"), way: Way::Sub, seen, ..STATIC }
}

const fn dav(name: &'static str, method: &'static str, target: &'static str) -> Entry {
    let text = "location /ID/ { RULE alias OWN/; dav_methods PUT DELETE MKCOL COPY MOVE; }";
    Entry { name, text, line: (method, target), seen: Seen::Changed, ..STATIC }
}

pub const ENTRIES: &[Entry] = &[
    STATIC,
    Entry { name: "slashes", line: ("GET", "//ID//FILE"), ..STATIC },
    Entry { name: "dots", line: ("GET", "/x/../ID/./y/../FILE"), ..STATIC },
    Entry { name: "percent", line: ("GET", "/%2e/ID/%2e/PERCENT"), ..STATIC },
    direct("off by a slash", "location /ID { RULE alias DATA/; }").at("/IDFILE"),
    direct("exact", "location = /ID/FILE { RULE alias DATA/FILE; }"),
    direct("index", "location /ID/ { RULE alias DATA/; index FILE; }").at("/ID/"),
    direct("list", "location /ID/ { RULE alias DATA/one/; autoindex on; }").at("/ID/"),
    direct("random", "location /ID/ { RULE alias DATA/one/; random_index on; }").at("/ID/"),
    direct("kept", "location /ID/ { RULE alias DATA/; open_file_cache max=10; }"),
    direct("packed", "location /ID/ { RULE alias DATA/; gzip_static always; }"),
    direct("flv", "location /ID/ { RULE alias DATA/; flv; }"),
    direct("mp4", "location /ID/ { RULE alias DATA/; mp4; }"),
    direct("tried", "location /ID/ { RULE root DATA; try_files /FILE =404; }"),
    direct("tried alias", "location /ID/ { RULE alias DATA/; try_files $uri =404; }"),
    direct("group", "location ~ ^/ID/(.*)$ { RULE alias DATA/$1; }"),
    direct("nested", "location /ID/ { RULE alias DATA/; location ~ txt$ { } }"),
    direct("nested in if", "location /ID/ { RULE alias DATA/; if ($uri) { add_header A b; } }"),
    direct("break", "location /ID/ { RULE root DATA; rewrite ^/ID/x$ /FILE break; }").at("/ID/x"),
    direct("proxied", "location /ID/ { RULE proxy_pass HIT/; }").at("/ID/x").asks(),
    direct(
        "streamed",
        "location /ID/ { RULE proxy_pass HIT/; proxy_request_buffering off; proxy_buffering off; }",
    )
    .at("/ID/x")
    .asks(),
    direct("cached", "location /ID/ { RULE proxy_pass HIT/; proxy_cache c; }").at("/ID/x"),
    direct("sliced", "location /ID/ { RULE slice 1k; proxy_pass HIT/; }").at("/ID/x").asks(),
    Entry {
        name: "stored",
        text: "location /ID/ { RULE alias OWN/; proxy_store on; proxy_pass HIT/; }",
        line: ("GET", "/ID/stored"),
        seen: Seen::Changed,
        ..STATIC
    },
    dav("put", "PUT", "/ID/new"),
    dav("put over", "PUT", "/ID/FILE"),
    dav("delete", "DELETE", "/ID/FILE"),
    dav("mkcol", "MKCOL", "/ID/made/"),
    Entry { header: Some(("Destination", "/ID/copy")), ..dav("copy", "COPY", "/ID/FILE") },
    Entry { header: Some(("Destination", "/ID/copy")), ..dav("move", "MOVE", "/ID/FILE") },
    Entry {
        name: "asked about",
        text: "location /ID/ { RULE alias DATA/; if (-f $request_filename) { return 200 SECRET; }
            return 404; }",
        way: Way::Rewrite,
        ..STATIC
    },
    direct("returned", "location /ID/ { RULE return 200 SECRET; }").at("/ID/x").early(),
    inside("tried last", "location = /ID-d { try_files /none /ID/FILE; } location /ID/ { RULE alias DATA/; }"),
    inside(
        "tried, named",
        "location = /ID-d { try_files /none @ID; } location @ID { RULE root DATA; try_files /FILE =404; }",
    ),
    inside(
        "error_page",
        "location = /ID-d { error_page 418 = /ID/FILE; return 418; } location /ID/ { RULE alias DATA/; }",
    ),
    inside(
        "error_page, named",
        "location = /ID-d { error_page 418 = @ID; return 418; }
         location @ID { RULE root DATA; rewrite ^ /FILE break; }",
    ),
    inside(
        "error_page of a server",
        "location = /ID-d { proxy_pass TOLD/418; proxy_intercept_errors on; error_page 418 = /ID/FILE; }
         location /ID/ { RULE alias DATA/; }",
    ),
    inside("rewrite", "rewrite ^/ID-d$ /ID/FILE last; location /ID/ { RULE alias DATA/; }"),
    inside(
        "rewrite in a location",
        "location = /ID-d { rewrite ^ /ID/FILE last; } location /ID/ { RULE alias DATA/; }",
    ),
    inside(
        "X-Accel-Redirect",
        "location = /ID-d { proxy_pass TOLD/accel/ID/FILE; } location /ID/ { RULE alias DATA/; }",
    ),
    inside(
        "X-Accel-Redirect, named",
        "location = /ID-d { proxy_pass TOLD/named/ID; } location @ID { RULE root DATA; try_files /FILE =404; }",
    ),
    inside("index elsewhere", "location = /ID-d/ { root DATA; index /ID/FILE; } location /ID/ { RULE alias DATA/; }")
        .at("/ID-d/"),
    sub("addition", "location = /ID-d { addition_types *; add_after_body /ID/FILE; alias DATA/open; } location /ID/ { RULE alias DATA/; }", Seen::Secret),
    sub("SSI", "location = /ID-d { ssi on; ssi_types *; alias OWN/page; } location /ID/ { RULE alias DATA/; }", Seen::Secret),
    sub("auth_request", "location = /ID-d { auth_request /ID/x; alias DATA/open; } location /ID/ { RULE proxy_pass HIT/; }", Seen::Asked),
    sub("mirror", "location = /ID-d { mirror /ID/x; alias DATA/open; } location /ID/ { RULE proxy_pass HIT/; }", Seen::Asked),
    Entry {
        way: Way::Inside,
        ..sub("post_action", "location = /ID-d { post_action /ID/x; alias DATA/open; } location /ID/ { RULE proxy_pass HIT/; }", Seen::Asked)
    },
    Entry {
        needs: Needs::Lua,
        ..sub("capture", "location = /ID-d { content_by_lua_block { ngx.print(ngx.location.capture('/ID/FILE').body) } } location /ID/ { RULE alias DATA/; }", Seen::Secret)
    },
    Entry {
        needs: Needs::Lua,
        ..inside("exec", "location = /ID-d { content_by_lua_block { ngx.exec('/ID/FILE') } } location /ID/ { RULE alias DATA/; }")
    },
    direct("table", "location /ID/ { RULE alias DATA/one/; fancyindex on; }").at("/ID/").added(),
    Entry {
        line: ("PROPFIND", "/ID/"),
        header: Some(("Depth", "1")),
        ..direct("properties", "location /ID/ { RULE alias DATA/one/; dav_ext_methods PROPFIND; }")
    }
    .added(),
    sub(
        "around a table",
        "location = /ID-d/ { alias DATA/one/; fancyindex on; fancyindex_ignore secret; fancyindex_header /ID/FILE; }
         location /ID/ { RULE alias DATA/; }",
        Seen::Secret,
    )
    .at("/ID-d/")
    .added(),
    direct(
        "purged",
        "location /ID/ { RULE proxy_cache_purge c ID; error_page 412 =200 /ID-told; }
         location = /ID-told { return 200 SECRET; }",
    )
    .at("/ID/x")
    .added(),
    Entry {
        line: ("PURGE", "/ID/x"),
        ..direct(
            "purged by its method",
            "location /ID/ { RULE proxy_pass HIT/; proxy_cache c; proxy_cache_purge PURGE; error_page 412 =200 /ID-told; }
             location = /ID-told { return 200 SECRET; }",
        )
    }
    .added(),
    direct("echo", "location /ID/ { RULE echo SECRET; }").at("/ID/x").added(),
    direct("echo of a body", "location /ID/ { RULE echo_read_request_body; echo SECRET; }").at("/ID/x").added(),
    sub(
        "echo_location",
        "location = /ID-d { echo_location /ID/FILE; } location /ID/ { RULE alias DATA/; }",
        Seen::Secret,
    )
    .added(),
    sub(
        "echo_subrequest_async",
        "location = /ID-d { echo_subrequest_async GET /ID/FILE; } location /ID/ { RULE alias DATA/; }",
        Seen::Secret,
    )
    .added(),
    inside("echo_exec", "location = /ID-d { echo_exec /ID/FILE; } location /ID/ { RULE alias DATA/; }").added(),
    Entry { needs: Needs::Tunnel, line: ("CONNECT", "ID.test:80"), ..direct("tunnel", "") },
];

impl Entry {
    const fn at(mut self, target: &'static str) -> Entry {
        self.line.1 = target;
        self
    }

    const fn added(mut self) -> Entry {
        self.needs = Needs::Added;
        self
    }

    const fn asks(mut self) -> Entry {
        self.seen = Seen::Asked;
        self
    }

    const fn early(mut self) -> Entry {
        self.way = Way::Rewrite;
        self
    }

    /// The name of a file, which is asked for or stands in the configuration.
    pub fn has_file(&self) -> bool {
        self.text.contains("FILE") || self.target_has_file()
    }

    /// The client says which.
    pub fn target_has_file(&self) -> bool {
        self.line.1.contains("FILE") || self.line.1.contains("PERCENT")
    }
}
