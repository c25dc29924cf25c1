"""The request record, metrics, the window and its judge, client health. Consumes records, starts nothing."""
