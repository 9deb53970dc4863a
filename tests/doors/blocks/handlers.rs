//! The handlers that answer in a location, and what shows that one has answered.

/// What is asked for in a location.
pub struct Handler {
    pub name: &'static str,
    pub text: &'static str,
    pub method: &'static str,
    pub target: &'static str,
    /// What shows that it has answered: a text, or a status.
    pub mark: Mark,
    /// Whether it is kept in `limit_except`, as in nginx.
    pub is_kept_by_limit: bool,
    /// Whether its directives may stand in `if`, and in `limit_except`.
    pub places: (bool, bool),
    /// It answers in the rewrite phase.
    pub is_code: bool,
    /// Directives that nginx itself does not have.
    pub is_added: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Mark {
    Text(&'static str),
    Status(&'static [u16]),
}

impl Mark {
    pub fn is_in(self, (status, body): &(u16, String)) -> bool {
        match self {
            Mark::Text(text) => body.contains(text),
            Mark::Status(list) => list.contains(status),
        }
    }
}

/// A file.
pub const FILE: Handler = Handler {
    name: "static",
    text: "",
    method: "GET",
    target: "secret.txt",
    mark: Mark::Text("SECRET"),
    is_kept_by_limit: true,
    places: (false, false),
    is_code: false,
    is_added: false,
};

/// Settings of what answers for files.
const fn files(name: &'static str, text: &'static str) -> Handler {
    Handler { name, text, ..FILE }
}

/// A handler that `limit_except` does not keep.
const fn lost(name: &'static str, text: &'static str, mark: Mark) -> Handler {
    Handler { name, text, mark, is_kept_by_limit: false, ..FILE }
}

/// Passes to a server that is not there.
const fn passed(name: &'static str, text: &'static str) -> Handler {
    Handler { name, text, mark: Mark::Status(&[502]), places: (true, false), ..FILE }
}

/// weir's own.
const fn own(name: &'static str, text: &'static str, mark: &'static str) -> Handler {
    Handler { name, text, mark: Mark::Text(mark), is_added: true, ..FILE }
}

pub const API: &str = "weir_api";
pub const PURGED: &str = "purge by its method";

pub const HANDLERS: &[Handler] = &[
    FILE,
    Handler { target: "one/", mark: Mark::Text("secret.txt"), ..files("list", "autoindex on;") },
    Handler { target: "one/", ..files("random", "random_index on;") },
    Handler {
        target: "one/",
        mark: Mark::Text("secret.txt"),
        is_added: true,
        ..files("table", "fancyindex on;")
    },
    files("packed", "gzip_static always;"),
    files("tried", "try_files $uri =404;"),
    files("kept open", "open_file_cache max=10;"),
    lost("flv", "flv;", Mark::Text("SECRET")),
    lost("mp4", "mp4;", Mark::Text("SECRET")),
    lost("empty_gif", "empty_gif;", Mark::Text("GIF89a")),
    lost("stub_status", "stub_status;", Mark::Text("Active connections")),
    Handler {
        places: (true, false),
        ..lost(
            "memcached",
            "set $memcached_key k; memcached_pass 127.0.0.1:%%PORT4%%;",
            Mark::Status(&[502]),
        )
    },
    Handler { is_code: true, places: (true, false), ..files("return", "return 200 SECRET;") },
    Handler { places: (true, true), ..files("proxy", "proxy_pass HIT;") },
    files("cache", "proxy_pass HIT; proxy_cache c;"),
    files("slices", "slice 1k; proxy_pass HIT;"),
    passed("fastcgi", "fastcgi_pass 127.0.0.1:%%PORT4%%;"),
    passed("uwsgi", "uwsgi_pass 127.0.0.1:%%PORT4%%;"),
    passed("scgi", "scgi_pass 127.0.0.1:%%PORT4%%;"),
    passed("grpc", "grpc_pass 127.0.0.1:%%PORT4%%;"),
    Handler {
        method: "PUT",
        target: "new",
        mark: Mark::Status(&[201, 204]),
        ..files("dav", "dav_methods PUT;")
    },
    Handler {
        is_added: true,
        places: (true, false),
        ..lost("echo", "echo SECRET;", Mark::Text("SECRET"))
    },
    Handler {
        is_added: true,
        places: (true, false),
        ..lost("lua", "content_by_lua_block { ngx.say('FROM LUA') }", Mark::Text("FROM LUA"))
    },
    Handler { is_added: true, ..lost("purge", "proxy_cache_purge c ID;", Mark::Status(&[412])) },
    Handler {
        method: "PURGE",
        mark: Mark::Status(&[412]),
        is_added: true,
        ..files(PURGED, "proxy_pass HIT; proxy_cache c; proxy_cache_purge PURGE from 10.0.0.1;")
    },
    own(API, "weir_api token=%%DIR%%/token;", "no such thing"),
    own("weir_status", "weir_status;", "# HELP"),
    own("weir_dashboard", "weir_dashboard;", "<script>"),
];
