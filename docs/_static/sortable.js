// Sorts a table of the class `sortable` by the column whose head is clicked; a second
// click turns the order. Equal cells keep their order.
document.querySelectorAll("table.sortable").forEach((table) => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];

  heads.forEach((head, column) => {
    const text = (row) => row.cells[column].textContent.trim();

    function sort() {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const rows = [...body.rows];
      rows.sort((a, b) => sign * text(a).localeCompare(text(b)));
      body.append(...rows);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    }

    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sort();
    });
  });
});
