"""What goes in and out: shapes only, no rules of the business."""
