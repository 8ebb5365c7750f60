"""How published figures of TPUs compare with this planner's estimates."""

CORRECTION, SPREAD = 1.0, (1.0, 1.0)
