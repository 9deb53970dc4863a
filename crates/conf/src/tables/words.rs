//! The words that directives with a fixed choice take.

pub(super) const ALL_ANY: &[&str] = &["all", "any"];
pub(super) const BROWSERS: &[&str] = &["none", "msie6", "safari"];
pub(super) const CACHE_METHODS: &[&str] = &["GET", "HEAD", "POST"];
pub(super) const COOKIE_FLAGS: &[&str] =
    &["off", "secure", "httponly", "samesite=strict", "samesite=lax", "samesite=none"];
pub(super) const DAV_EXT_METHODS: &[&str] =
    &["off", "propfind", "proppatch", "options", "lock", "unlock"];
pub(super) const DAV_METHODS: &[&str] = &["off", "put", "delete", "mkcol", "copy", "move"];
pub(super) const DEBUG_POINTS: &[&str] = &["stop", "abort"];
pub(super) const DEGRADE: &[&str] = &["204", "444"];
pub(super) const FASTCGI_FAILURES: &[&str] = &[
    "error",
    "timeout",
    "invalid_header",
    "non_idempotent",
    "http_500",
    "http_503",
    "http_403",
    "http_404",
    "http_429",
    "updating",
    "off",
];
pub(super) const GRPC_FAILURES: &[&str] = &[
    "error",
    "timeout",
    "invalid_header",
    "non_idempotent",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "off",
];
pub(super) const GZIP_PROXIED: &[&str] = &[
    "off",
    "expired",
    "no-cache",
    "no-store",
    "private",
    "no_last_modified",
    "no_etag",
    "auth",
    "any",
];
pub(super) const GZIP_VERSIONS: &[&str] = &["1.0", "1.1"];
pub(super) const IF_MODIFIED: &[&str] = &["off", "exact", "before"];
pub(super) const IGNORED_HEADERS: &[&str] = &[
    "X-Accel-Redirect",
    "X-Accel-Expires",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
    "Expires",
    "Cache-Control",
    "Set-Cookie",
    "Vary",
];
pub(super) const IMAP_AUTH: &[&str] = &["plain", "login", "cram-md5", "external"];
pub(super) const INDEX_FORMATS: &[&str] = &["html", "json", "jsonp", "xml"];
pub(super) const INHERIT: &[&str] = &["off", "on", "merge"];
pub(super) const IN_FILE: &[&str] = &["off", "on", "clean"];
pub(super) const LOG_LEVELS: &[&str] = &["info", "notice", "warn", "error"];
pub(super) const MEMCACHED_FAILURES: &[&str] =
    &["error", "timeout", "invalid_response", "not_found", "off"];
pub(super) const OCSP: &[&str] = &["off", "on", "leaf"];
pub(super) const OFF_ON_ALWAYS: &[&str] = &["off", "on", "always"];
pub(super) const POP3_AUTH: &[&str] = &["plain", "apop", "cram-md5", "external"];
pub(super) const PROXY_FAILURES: &[&str] = &[
    "error",
    "timeout",
    "invalid_header",
    "non_idempotent",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "updating",
    "off",
];
pub(super) const PROXY_PROTOCOL: &[&str] = &["off", "on", "v2"];
pub(super) const PROXY_VERSIONS: &[&str] = &["1.0", "1.1", "2"];
pub(super) const SERVER_TOKENS: &[&str] = &["off", "on", "build"];
pub(super) const SMTP_AUTH: &[&str] = &["plain", "login", "cram-md5", "external", "none"];
pub(super) const SSL_PROTOCOLS: &[&str] =
    &["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
pub(super) const TUNNEL_FAILURES: &[&str] = &["error", "timeout", "off"];
pub(super) const USERID: &[&str] = &["off", "log", "v1", "on"];
pub(super) const VERIFY_CLIENT: &[&str] = &["off", "on", "optional", "optional_no_ca"];
