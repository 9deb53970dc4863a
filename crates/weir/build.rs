//! Exports symbols of the program: Lua's functions for C modules that scripts load, and the
//! functions of nginx in `weir_sys::lua` for scripts.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for names in ["lua_*", "luaL_*", "ngx_hex_dump", "ngx_atoi"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={names}");
    }
}
