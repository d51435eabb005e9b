# frozen_string_literal: true

# The page names what is written here, and how long it is.
RSpec.describe "docs/internals/written_here.md" do
  rows = ProjectFiles.read("docs/internals/written_here.md").scan(/^\| \[(.+?)\]\(#(.+?)\) \| (.+?) \| ([\d,]+) \|/)

  it "lists parts, each with a section that gives the reason" do
    expect(rows.size).to be > 15
    headings = ProjectFiles.read("docs/internals/written_here.md").scan(/^## (.+)$/).flatten
    anchors = headings.map { |heading| heading.downcase.tr(" ", "-") }
    expect(rows.map { |_, anchor, _, _| anchor } - anchors).to be_empty
  end

  rows.each do |name, _, places, lines|
    it "says how long #{name} is" do
      paths = places.scan(/`(.+?)`/).flatten.flat_map do |place|
        anywhere = place.start_with?("ext/", "lib/") ? place : "ext/*/src/{#{place},*/#{place}}"
        found = ProjectFiles.matching("#{anywhere}{,.rs,.rb}", "#{anywhere}/**/*.{rs,rb}")
        expect(found).not_to be_empty, "#{place} is not there"
        found
      end
      actual = paths.uniq.grep(/\.r[sb]\z/).sum { |path| ProjectFiles.read(path).lines.size }
      expect(lines.delete(",").to_i).to be_within(0.15 * actual).of(actual)
    end
  end
end
