//! The part of `ngx` that is written in Lua.

/// The chunks with their names, in the order in which they run.
pub const PRELUDE: &[(&str, &str)] = &[
    ("=errors", include_str!("prelude/errors.lua")),
    ("=ffi", include_str!("prelude/ffi.lua")),
    ("=direct", include_str!("prelude/direct.lua")),
    ("=openssl", include_str!("prelude/openssl.lua")),
    ("=tables", include_str!("prelude/tables.lua")),
    ("=ngx", include_str!("prelude/ngx.lua")),
    ("=ngx.var", include_str!("prelude/fields.lua")),
    ("=ngx.worker", include_str!("prelude/worker.lua")),
    ("=ngx.req", include_str!("prelude/request.lua")),
    ("=ngx.location", include_str!("prelude/capture.lua")),
    ("=ngx.re", include_str!("prelude/re.lua")),
    ("=ngx.shared", include_str!("prelude/shared.lua")),
    ("=ngx.socket", include_str!("prelude/socket.lua")),
    ("=ngx.socket.udp", include_str!("prelude/udp.lua")),
    ("=ngx.semaphore", include_str!("prelude/semaphore.lua")),
    ("=ngx.pipe", include_str!("prelude/pipe.lua")),
    ("=ngx.balancer", include_str!("prelude/balancer.lua")),
    ("=ngx.ssl", include_str!("prelude/ssl.lua")),
    ("=ngx.ocsp", include_str!("prelude/ocsp.lua")),
    ("=modules", include_str!("prelude/modules.lua")),
    ("=ngx.stream", include_str!("prelude/session.lua")),
];
