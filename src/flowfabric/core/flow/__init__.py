"""The rules of flows: joins, edges, graphs, dispatch. Pure, each rule once."""
