def table(headers, rows, align=None):
    rows = [headers, *rows]
    w = [max(len(str(r[i])) for r in rows) for i in range(len(headers))]
    return "\n".join("  ".join(str(c).ljust(n) for c, n in zip(r, w)).rstrip() for r in rows)
