//! Lists all modules, the handlers of each phase, and the filters in their order. There is no other
//! list.
//!
//! A module is one file in one order: settings, directive table, `MODULE`, handler, helpers. It has
//! nginx's name without `ngx_http_` and `_module`. A new module is its file and its lines here.

use std::sync::OnceLock;

use crate::config::module::{Entry, Module, Modules, Phases};
use crate::config::scope::Directive;
use crate::core;
use crate::event_loop::LoopKeys;
use crate::phases::{Answer, Handler, Step};
use crate::request::Request;
use crate::request::step::{HeaderFilter, Named, TrailerFilter};
use crate::site::main_conf::MainKeys;
use crate::site::settings::{LocationConf, Slots};

pub mod access;
pub mod acme;
pub mod addition_filter;
pub mod api;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod brotli_filter;
pub mod brotli_static;
pub mod browser;
pub mod cache_purge;
pub mod charset_filter;
pub mod dashboard;
pub mod dav;
pub mod dav_ext;
pub mod echo;
pub mod empty_gif;
mod encoding;
pub mod event_loop;
pub mod fancyindex;
pub mod fastcgi;
pub mod flv;
pub mod geo;
pub mod geoip;
pub mod grpc;
pub mod gunzip_filter;
pub mod gzip_filter;
pub mod gzip_static;
pub mod headers_filter;
pub mod headers_more_filter;
pub mod image_filter;
pub mod index;
pub mod limit_conn;
pub mod limit_req;
pub mod log;
pub mod lua;
pub mod map;
pub mod memcached;
pub mod mirror;
pub mod mp4;
pub mod not_modified_filter;
pub mod otel;
pub mod precompressed;
pub mod proxy;
pub mod random_index;
pub mod range_filter;
pub mod realip;
pub mod referer;
pub mod rewrite;
pub mod route;
pub mod scgi;
pub mod secure_link;
pub mod slice_filter;
pub mod split_clients;
pub mod ssi_filter;
pub mod ssl;
pub mod static_;
pub mod stub_status;
pub mod sub_filter;
pub mod tunnel;
pub mod upstream;
pub mod userid_filter;
pub mod uwsgi;
pub mod v2;
pub mod v3;
pub mod work;
pub mod zstd_filter;
pub mod zstd_static;

/// Declares the modules in their order, and the settings of those that have settings per location.
macro_rules! modules {
    ($($name:ident $(: $settings:ident)?),* $(,)?) => {
        /// All modules, in the order in which their directives are looked up.
        static LIST: &[&Module] = &[$(&$name::MODULE),*];

        /// The settings of the modules that have settings.
        static SETTINGS: Slots = &[$($(&$name::$settings,)?)*];
    };
}

modules! {
    access: CONF,
    acme: CONF,
    addition_filter: CONF,
    api: CONF,
    auth_basic: CONF,
    auth_request: CONF,
    autoindex: CONF,
    brotli_filter: CONF,
    brotli_static: CONF,
    browser: CONF,
    cache_purge: CONF,
    charset_filter: CONF,
    core,
    dashboard,
    dav: CONF,
    dav_ext: CONF,
    echo: CONF,
    empty_gif,
    flv,
    event_loop,
    fancyindex: CONF,
    fastcgi: CONF,
    geo,
    geoip: CONF,
    grpc: CONF,
    gunzip_filter: CONF,
    gzip_filter: CONF,
    gzip_static: CONF,
    headers_filter: CONF,
    headers_more_filter: CONF,
    image_filter: CONF,
    index: CONF,
    limit_conn: CONF,
    limit_req: CONF,
    log: CONF,
    lua: CONF,
    map,
    memcached: CONF,
    mirror: CONF,
    mp4: CONF,
    otel: CONF,
    proxy: CONF,
    random_index: CONF,
    realip: CONF,
    referer: CONF,
    rewrite: CONF,
    route: CONF,
    scgi: CONF,
    secure_link: CONF,
    slice_filter: CONF,
    split_clients,
    ssi_filter: CONF,
    ssl: CONF,
    stub_status,
    sub_filter: CONF,
    tunnel: CONF,
    upstream: CONF,
    userid_filter: CONF,
    uwsgi: CONF,
    v2,
    v3,
    work: CONF,
    zstd_filter: CONF,
    zstd_static: CONF,
}

type Wanted = fn(&LocationConf) -> bool;

/// A handler that answers at once.
const fn now(
    module: &'static str,
    wanted: Wanted,
    run: fn(&mut Request) -> Step,
) -> Entry<Handler> {
    Entry { named: Named { module, run: Handler::Now(run) }, wanted }
}

/// A handler that waits for some requests.
const fn either(
    module: &'static str,
    wanted: Wanted,
    run: for<'a> fn(&'a mut Request) -> Answer<'a>,
) -> Entry<Handler> {
    Entry { named: Named { module, run: Handler::Either(run) }, wanted }
}

/// A filter, or a handler of the log phase.
const fn plain<T: Copy>(module: &'static str, wanted: Wanted, run: T) -> Entry<T> {
    Entry { named: Named { module, run }, wanted }
}

/// The module name of filters that only compare a few values. Their time is not measured.
const QUICK: &str = "";

/// The `wanted` of handlers and filters that any request may need.
fn always(_: &LocationConf) -> bool {
    true
}

/// The handlers of each phase, in the order in which they run.
#[expect(clippy::disallowed_methods, reason = "this is their order")]
static PHASES: Phases = Phases {
    client_hello: &[plain("lua", lua::wants_client_hello, lua::client_hello)],
    session_fetch: &[plain("lua", lua::wants_session_fetch, lua::session_fetch)],
    session_store: &[plain("lua", lua::wants_session_store, lua::session_store)],
    certificate: &[plain("lua", lua::wants_certificate, lua::certificate)],
    post_read: &[
        either("acme", acme::wanted, acme::handler),
        now("realip", realip::wanted, realip::handler),
    ],
    server_rewrite: &[
        either("lua", lua::wants_server_rewrite, lua::server_rewrite),
        either("rewrite", rewrite::wanted, rewrite::server),
    ],
    rewrite: &[
        now("otel", otel::wanted, otel::handler),
        now("work", work::wanted, work::handler),
        now("route", route::wanted, route::handler),
        either("lua", lua::wants_early_rewrite, lua::rewrite),
        either("rewrite", rewrite::wanted, rewrite::location),
    ],
    rewritten: &[
        now(
            "headers_more_filter",
            headers_more_filter::wants_requests,
            headers_more_filter::handler,
        ),
        either("lua", |conf| lua::wants_rewrite(conf, rewrite::has_blocks(conf)), lua::rewrite),
    ],
    preaccess: &[
        now("realip", realip::wanted, realip::handler),
        either("limit_req", limit_req::wanted, limit_req::handler),
        now("limit_conn", limit_conn::wanted, limit_conn::handler),
    ],
    access: &[
        either("lua", lua::wants_early_access, lua::access),
        now("access", access::wanted, access::handler),
        either("auth_basic", auth_basic::wanted, auth_basic::handler),
        either("auth_request", auth_request::wanted, auth_request::handler),
        either("lua", lua::wants_access, lua::access),
    ],
    precontent: &[
        either("lua", lua::wants_early_precontent, lua::precontent),
        either("try_files", core::wants_try_files, core::try_files),
        either("mirror", mirror::wanted, mirror::handler),
        either("image_filter", image_filter::wanted, image_filter::handler),
        either("dav_ext", dav_ext::has_locks, dav_ext::check),
        either("lua", lua::wants_precontent, lua::precontent),
    ],
    content: &[
        either("random_index", random_index::wanted, random_index::handler),
        either("index", always, index::handler),
        either("fancyindex", fancyindex::wanted, fancyindex::handler),
        either("autoindex", autoindex::wanted, autoindex::handler),
        either("dav", dav::wanted, dav::handler),
        either("dav_ext", dav_ext::wanted, dav_ext::handler),
        either("brotli_static", brotli_static::wanted, brotli_static::handler),
        either("zstd_static", zstd_static::wanted, zstd_static::handler),
        either("gzip_static", gzip_static::wanted, gzip_static::handler),
        either("static", always, static_::handler),
    ],
    log: &[
        // A script may set variables of the access log. nginx: the lua module puts its handler first.
        plain("lua", lua::wants_log, lua::log),
        plain("log", always, log::handler),
        plain("otel", otel::wants_spans, otel::log),
    ],
};

/// Header filters in nginx's order (its module list from the end).
static HEADER_FILTERS: &[Entry<HeaderFilter>] = &[
    plain("slice_filter", slice_filter::wanted, slice_filter::header_filter),
    plain(QUICK, always, not_modified_filter::header_filter),
    plain("image_filter", image_filter::wanted, image_filter::header_filter),
    plain("lua", lua::wants_filter, lua::header_filter),
    plain(
        "headers_more_filter",
        headers_more_filter::wants_answers,
        headers_more_filter::header_filter,
    ),
    plain("headers_filter", headers_filter::wanted, headers_filter::header_filter),
    plain("v3", v3::wanted, v3::header_filter),
    plain("userid_filter", userid_filter::wanted, userid_filter::header_filter),
    plain("gunzip_filter", gunzip_filter::wanted, gunzip_filter::header_filter),
    plain("addition_filter", addition_filter::wanted, addition_filter::header_filter),
    plain("echo", echo::wanted, echo::header_filter),
    plain("sub_filter", sub_filter::wanted, sub_filter::header_filter),
    plain(QUICK, always, charset_filter::header_filter),
    plain("ssi_filter", ssi_filter::wanted, ssi_filter::header_filter),
    plain(QUICK, always, crate::answer::filters::postpone),
    plain("brotli_filter", brotli_filter::wanted, brotli_filter::header_filter),
    plain("zstd_filter", zstd_filter::wanted, zstd_filter::header_filter),
    plain("gzip_filter", gzip_filter::wanted, gzip_filter::header_filter),
    plain(QUICK, always, range_filter::header_filter),
    plain("slice_filter", slice_filter::wanted, slice_filter::last_header_filter),
];

/// What modules make of the whole `http` block. A key comes after the keys that its draft reads
/// when it is finished.
static MAIN_KEYS: MainKeys = &[
    &crate::upstream::groups::GROUPS,
    &crate::upstream::health::CHECKS,
    &lua::SCRIPTS,
    &lua::SESSIONS,
    &otel::EXPORTER,
    &acme::ISSUERS,
];

/// What modules keep in each loop. Their hooks run in this order.
static LOOP_KEYS: LoopKeys = &[
    &crate::upstream::counts::COUNTS,
    &crate::upstream::pools::POOLS,
    &crate::upstream::cache::STORES,
    &crate::upstream::process::HELPERS,
    &dashboard::PANEL,
    &lua::VM,
    &otel::SPANS,
];

/// Trailer filters.
static TRAILER_FILTERS: &[Entry<TrailerFilter>] =
    &[plain("headers_filter", headers_filter::wants_trailers, headers_filter::trailer_filter)];

/// Everything above, for the core.
pub static MODULES: Modules = Modules {
    list: LIST,
    settings: SETTINGS,
    main_keys: MAIN_KEYS,
    loop_keys: LOOP_KEYS,
    phases: &PHASES,
    header_filters: HEADER_FILTERS,
    trailer_filters: TRAILER_FILTERS,
    check: |main| charset_filter::check(charset_filter::CONF.of(main)),
    by_name: OnceLock::new(),
};

/// nginx's names of the modules that weir has.
pub fn names() -> impl Iterator<Item = &'static str> {
    let names = LIST.iter().map(|m| m.name);
    names.chain(upstream::ALSO.iter().chain(geoip::ALSO).copied())
}

/// Whether weir gives a meaning to this directive in the `http` family.
pub fn built(name: &str) -> bool {
    directive(name).is_some()
}

/// The directive of this name, if a module has it.
pub fn directive(name: &str) -> Option<&'static Directive> {
    MODULES.directive(name)
}
