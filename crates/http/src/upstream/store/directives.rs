//! The directives of [`Store`](super::conf::Store): `proxy_store`, `fastcgi_store` ...

/// The directives of a module with answers that may be stored: `store_directives!(proxy,
/// "proxy_")`.
macro_rules! store_directives {
    ($key:ident, $prefix:literal) => {{
        use std::sync::Arc;

        use $crate::config::scope::Scope;
        use $crate::config::table::table;
        use $crate::files::permissions;
        use $crate::upstream::UpstreamConf;
        use $crate::upstream::cache::Zone;
        use $crate::upstream::store::Store;

        const CACHE: &str = concat!($prefix, "cache");
        const CONFLICT: &str = concat!("is incompatible with \"", $prefix, "cache\"");
        fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut UpstreamConf {
            &mut $key.change(&mut s.location).passing
        }
        table! { $prefix, settings:
            "store": once(|s, d| {
                let store = Store::read(s, d)?;
                let same_block = s.has_seen(CACHE);
                let passing = settings(s);
                if store.is_some() && passing.caching.is_on() {
                    if same_block {
                        return Err(d.problem(CONFLICT));
                    }
                    // A `..._cache` of the enclosing block is replaced by `..._store`.
                    Arc::make_mut(&mut passing.caching).zone = Zone::Off;
                }
                passing.store = store;
                Ok(())
            }), "Answers become files of this server.";
            "store_access": value(store_access, permissions::read),
                "Permissions of files that answers become.";
        }
    }};
}
pub(crate) use store_directives;
