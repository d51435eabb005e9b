# frozen_string_literal: true

module Candle
  # Finds calls of tools in an answer that comes piece by piece. Text that is certainly not part of a call can be shown
  # at once. A call is told by its name first, and then by its arguments as they come.
  #
  # However an answer is cut, text and calls are the same.
  #
  # @api private
  class ToolStream
    # What is read of a section: its text, the formats that it may be of, and how much of each call was told.
    Section = Struct.new(:text, :formats, :told, :read_at, keyword_init: true)
    # What was told of a call: its index, and how many bytes of its arguments.
    Told = Struct.new(:index, :bytes, :whole, keyword_init: true)
    private_constant :Section, :Told

    # From this size on a section is read again only after it has grown by a share.
    LARGE = 4096
    private_constant :LARGE

    # @return [Array<ToolCall>] the calls that are whole
    def calls
      @calls.compact
    end

    # @return [String] the text around them so far
    attr_reader :text

    # @param formats [Array<ToolFormat>]
    # @param tools [Array<Tool>] whose schemas say what arguments are
    # @param known [Boolean] whether calls of other tools do not count
    def initialize(formats = ToolFormats::ALL, tools: [], known: false)
      @formats = formats
      @tools = tools
      @names = known && tools.any? ? tools.map(&:name) : nil
      @held = +""
      @space = +""
      @text = +""
      @calls = []
      @marks = formats.reject(&:first?).flat_map { |format| format.marks(tools) + format.noise }.uniq
      @noise = formats.flat_map(&:noise).uniq
    end

    # @param piece [String]
    # @return [Array<Array>] `[:text, String]`, `[:tool_call, {index:, id:, name:}]` and
    #   `[:arguments, {index:, json:}]`
    def push(piece)
      @pushed = true
      @held << piece
      advance(false)
    end

    # @param whole [String] the answer, in case that nothing of it was pushed
    # @return [Array<Array>] what was held back
    def finish(whole = "")
      @held << whole unless @pushed
      events = advance(true)
      events << show(@space.slice!(0..)) if @calls.compact.empty? && !@space.empty?
      events
    end

    private

    def advance(final)
      events = []
      loop { break unless @section ? read(events, final) : scan(events, final) }
      events
    end

    # Looks for the mark of a section; false when more text is needed.
    def scan(events, final)
      return false if @held.empty?
      return true if begin_first
      return false if !final && first_pending?

      look(events, final)
    end

    def look(events, final)
      at, mark = first_mark
      tell(events, @held.slice!(0, at || (@held.size - (final ? 0 : pending))))
      return false if at.nil? || (!final && longer?(mark))

      @noise.include?(mark) ? @held.slice!(0, mark.size) : begin_section(formats_at)
      true
    end

    # @return [Array(Integer, String), nil] where the next mark is, the longest one of that place
    def first_mark
      @marks.filter_map { |candidate| [@held.index(candidate), candidate] if @held.include?(candidate) }
            .min_by { |index, candidate| [index, -candidate.size] }
    end

    # A section that is one only where nothing stands before it.
    def begin_first
      return false unless @text.empty?

      text = @held.lstrip
      found = @formats.select { |format| format.first? && begins?(format, text) }
      return false if found.empty? || @tried || marked?(text)

      @space << @held.slice!(0, @held.size - text.size)
      begin_section([*formats_at, *found])
    end

    # Whether another mark may begin there.
    def marked?(text)
      @marks.any? { |mark| mark.size > text.size && mark.start_with?(text) }
    end

    def begins?(format, text)
      format.marks(@tools).any? { |mark| text.start_with?(mark) }
    end

    def first_pending?
      return false if !@text.empty? || @tried

      text = @held.lstrip
      return true if marked?(text)

      @formats.any? { |format| format.first? && format.marks(@tools).any? { |mark| mark.start_with?(text) } }
    end

    def formats_at
      @formats.reject(&:first?).select { |format| begins?(format, @held) }
    end

    def begin_section(formats)
      @section = Section.new(text: @held.slice!(0..), formats: formats, told: [])
      true
    end

    # Whether a longer mark may begin at the same place.
    def longer?(mark)
      @marks.any? { |other| other.size > @held.size && other.size > mark.size && other.start_with?(@held) }
    end

    def read(events, final)
      @section.text << @held.slice!(0..)
      return false if !final && @section.read_at && @section.text.bytesize < @section.read_at

      reading = nil
      @section.formats.shift until @section.formats.empty? ||
                                   (reading = @section.formats.first.read(@section.text, @tools, final: final))
      return refuse(events) unless reading

      reading.calls.each_with_index { |call, index| announce(events, call, index) }
      return wait unless reading.stop || final

      close(events, reading)
    end

    def wait
      size = @section.text.bytesize
      @section.read_at = size + (size / 16) if size > LARGE
      false
    end

    # What begins like a call and is not one stays text: its mark first, then what follows.
    def refuse(events)
      text = @section.text
      @section = nil
      @tried = true
      mark = @marks.select { |candidate| text.start_with?(candidate) }.max_by(&:size)
      tell(events, text.slice!(0, mark ? mark.size : 1))
      @held = text
      true
    end

    def close(events, reading)
      section = @section
      stop = reading.stop || section.text.bytesize
      @section = nil
      @tried = true
      if section.told.compact.none?(&:whole) && !reading.dropped
        tell(events, section.text.byteslice(0...stop))
      elsif @text.empty?
        @space.clear
      end
      @held = section.text.byteslice(stop..).to_s
      !@held.empty?
    end

    # Calls of one tool twice are told when they are whole: one that says the same again does not count.
    def announce(events, call, place)
      return if @names && !@names.include?(call.name)

      told = @section.told[place]
      return if told&.whole
      return complete(events, call, place, told) if call.arguments
      return if told.nil? && @calls.compact.any? { |other| other.name == call.name }

      told ||= begin_call(events, call, place)
      argue(events, told, call)
    end

    def complete(events, call, place, told)
      if told.nil? && @calls.compact.any? { |other| [other.name, other.arguments] == [call.name, call.arguments] }
        @section.told[place] = Told.new(whole: true)
        return
      end

      told ||= begin_call(events, call, place)
      argue(events, told, call)
      told.whole = true
      @calls[told.index] = call.to_call
    end

    def begin_call(events, call, place)
      index = @calls.size
      @calls << nil
      events << [:tool_call, { index: index, id: call.id, name: call.name }]
      @section.told[place] = Told.new(index: index, bytes: 0)
    end

    def argue(events, told, call)
      more = call.json.byteslice(told.bytes..).to_s
      return if more.empty?

      told.bytes += more.bytesize
      events << [:arguments, { index: told.index, json: more }]
    end

    # White space waits for what comes next: before a call and behind it is left out.
    def tell(events, text)
      return true if text.empty?

      @space << text
      shown = @space.slice!(0, @space.rstrip.size)
      events << show(shown) unless shown.empty?
      true
    end

    def show(text)
      @text << text
      [:text, text]
    end

    def pending
      longest = [@marks.map(&:size).max.to_i - 1, @held.size].min
      longest.downto(1).find { |size| @marks.any? { |mark| mark.start_with?(@held[-size, size]) } }.to_i
    end
  end
end
