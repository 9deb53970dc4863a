//! HTTP: connection, request, phases, location tree, variables and modules.
