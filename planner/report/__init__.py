"""Report: answers as tables for a terminal, 100 to 120 columns wide. No numbers are made here."""
