// Package report shows records to people: a table for the terminal and one self-contained HTML page.
package report
