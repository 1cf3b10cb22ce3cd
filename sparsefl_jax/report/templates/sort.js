"use strict";
// Sorts a table by the column whose button is clicked: numbers downwards first, words
// upwards first. Cells without a value stay at the end.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const words = head.classList.contains("text");
      const before = head.getAttribute("aria-sort");
      const first = words ? "ascending" : "descending";
      const second = words ? "descending" : "ascending";
      const order = before === first ? second : first;
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => {
        const cell = row.cells[column];
        if (words) return cell.textContent.trim();
        return "value" in cell.dataset ? Number(cell.dataset.value) : null;
      };
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        const numbers = !words || !(isNaN(x) || isNaN(y));
        return sign * (numbers ? x - y : x.localeCompare(y, "en"));
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(compare));
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order);
    });
  });
}
