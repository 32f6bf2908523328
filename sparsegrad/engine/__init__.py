"""The tape: primitives and their rules, the recorded graph, the switches."""
